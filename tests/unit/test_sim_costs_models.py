import json
from pathlib import Path

import pytest

from plait.core.errors import ConfigError
from plait.sim.costs.models import MODELS, model_of, read_model

PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "deepseek-r1-distill-qwen-14b": 14_770_033_664,
    "llama-3.1-8b": 8_030_261_248,
    "smollm2-135m": 134_515_008,
}
"""Numbers of weights on the hub's model pages (tied tables counted once)."""

QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


def test_parameters_are_those_of_the_model_cards() -> None:
    assert {name: model.n_params for name, model in MODELS.items()} == PUBLISHED


@pytest.mark.parametrize(("name", "billions"), [("qwen3-30b-a3b", 3.3), ("qwen3-235b-a22b", 22.0)])
def test_active_parameters_are_those_of_the_model_cards(name: str, billions: float) -> None:
    assert MODELS[name].n_active / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "without_embedding"), [("qwen3-0.6b", 0.44e9), ("qwen3-8b", 6.95e9)]
)
def test_flops_are_two_per_weight_that_is_multiplied(name: str, without_embedding: float) -> None:
    assert MODELS[name].body_flops / 2 == pytest.approx(without_embedding, rel=0.01)


def test_kv_and_attention_by_hand() -> None:
    llama = MODELS["llama-3.1-8b"]
    assert llama.kv_values * 2 == 131_072  # 128 KiB a token in bf16
    assert llama.attention_flops == 4 * 32 * 32 * 128
    assert llama.adapter_params(16) == 41_943_040  # what PEFT prints for rank 16 on all seven


def test_names_may_have_owner_and_ending() -> None:
    assert model_of("Qwen/Qwen3-4B") is MODELS["qwen3-4b"]
    assert model_of("meta-llama/Llama-3.1-8B-Instruct") is MODELS["llama-3.1-8b"]


def test_a_configuration_on_disk_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B))
    for given in (tmp_path, tmp_path / "config.json"):
        read = model_of(str(given))
        assert (read.n_params, read.n_active) == (
            MODELS["qwen3-30b-a3b"].n_params,
            MODELS["qwen3-30b-a3b"].n_active,
        )


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'qwen3-4bb': did you mean 'qwen3-4b'\?"):
        model_of("Qwen3-4BB")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read"),
        ("[]", "should hold an object"),
        (json.dumps({k: v for k, v in QWEN3_30B.items() if k != "vocab_size"}), "has no 'vocab"),
        (json.dumps({**QWEN3_30B, "hidden_size": "wide"}), "wrong number"),
        (json.dumps({**QWEN3_30B, "num_hidden_layers": 0}), "wrong number"),
        (json.dumps({**QWEN3_30B, "num_experts_per_tok": 129}), "wrong number"),
        (json.dumps({**QWEN3_30B, "hidden_size": 1.5}), "1.5 is no whole number"),
        (json.dumps({**QWEN3_30B, "hidden_size": True}), "True is no whole number"),
        (json.dumps({**QWEN3_30B, "num_attention_heads": -1}), "wrong number"),
        ("[" * 100_000, "cannot read"),
    ],
)
def test_a_wrong_configuration_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_model(tmp_path)


def test_a_missing_file_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"give a Hugging Face config\.json"):
        model_of(f"{tmp_path}/nothing.json")
    with pytest.raises(ConfigError, match="unknown model 'nothing'"):
        model_of(f"{tmp_path}/nothing")
