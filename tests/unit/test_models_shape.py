import json
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ModelError
from plait.models.shape import read_shape

QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
QWEN2_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def directory(tmp_path: Path, config: dict[str, Any]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("config", "n_params"),
    [(QWEN3_06B, 596_049_920), (QWEN2_05B, 494_032_768), (SMOLLM2_135M, 134_515_008)],
)
def test_parameters_are_counted_as_published(
    config: dict[str, Any], n_params: int, tmp_path: Path
) -> None:
    assert read_shape(directory(tmp_path, config)).n_params == n_params


def test_untied_tables_count_twice(tmp_path: Path) -> None:
    tied = read_shape(directory(tmp_path, SMOLLM2_135M)).n_params
    untied = read_shape(directory(tmp_path, SMOLLM2_135M | {"tie_word_embeddings": False})).n_params
    assert untied - tied == 49152 * 576


def test_cache_bytes_are_keys_and_values_of_every_layer_in_fp32(tmp_path: Path) -> None:
    shape = read_shape(directory(tmp_path, SMOLLM2_135M))
    assert (shape.n_layers, shape.n_kv_heads, shape.head_dim) == (30, 3, 64)
    assert shape.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4


def test_every_head_is_a_kv_head_where_the_file_does_not_say(tmp_path: Path) -> None:
    config = {k: v for k, v in SMOLLM2_135M.items() if k != "num_key_value_heads"}
    assert read_shape(directory(tmp_path, config)).n_kv_heads == 9


def test_unsupported_architecture_names_the_supported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        read_shape(directory(tmp_path, {"architectures": ["GPT2LMHeadModel"]}))


def test_a_missing_number_is_named(tmp_path: Path) -> None:
    config = {k: v for k, v in QWEN2_05B.items() if k != "vocab_size"}
    with pytest.raises(ModelError, match="vocab_size"):
        read_shape(directory(tmp_path, config))


def test_unreadable_config_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        read_shape(tmp_path)
