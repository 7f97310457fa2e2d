"""Models and modes that the way through ``transformers`` does not take: each with its reason."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from foreign_models import foreign_model
from safetensors.torch import load_file, save_file

from plait.core.errors import EngineError, ModelError
from plait.engines.torch.fallback import attention
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.trainer import TorchTrain
from plait.models.shape import read_shape


@pytest.mark.parametrize("part", ["softcap", "scaling", "rule"])
def test_a_model_that_we_compute_otherwise_is_refused(
    part: str, tmp_path: Path, monkeypatch
) -> None:
    """The trial on start: each thing that attention is asked for, left out."""
    model = foreign_model(tmp_path / "model", "gemma2", sliding_window=2)
    scored = attention.scored
    without = {
        "softcap": lambda a: replace(a, softcap=None),
        "scaling": lambda a: replace(a, scaling=2 * a.scaling),
        "rule": lambda a: a,
    }[part]

    def wrong(q, k, v, seen, asked):
        if part == "rule":
            seen = torch.ones_like(seen).tril()
        return scored(q, k, v, seen, without(asked))

    monkeypatch.setattr(attention, "scored", wrong)
    with pytest.raises(ModelError, match="other log-probs than by transformers alone"):
        TorchTrain(model)


def test_deterministic_mode_is_for_our_own_forward(tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", "olmo2")
    for make in (TorchTrain, partial(TorchRollout, n_blocks=8, max_seqs=1, max_batch_tokens=8)):
        with pytest.raises(EngineError, match=r"Olmo2ForCausalLM: deterministic mode is for"):
            make(model, exact=True)


@pytest.mark.parametrize(
    ("architecture", "keys", "why"),
    [
        ("MixtralForCausalLM", {"num_local_experts": 8}, "it has experts"),
        ("Qwen3MoeForCausalLM", {}, "it has experts"),
        ("MambaForCausalLM", {"state_size": 16}, "keeps a state"),
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "it has an encoder"),
        ("Gemma3ForConditionalGeneration", {"vision_config": {"a": 1}}, "not a model of text"),
        ("LlavaForCausalLM", {"vision_config": {"a": 1}}, "not a model of text"),
        ("Qwen3NextForCausalLM", {"layer_types": ["linear_attention"]}, "of linear_attention"),
        ("BertModel", {}, "no causal language model"),
        ("Phi3ForCausalLM", {"quantization_config": {"bits": 4}}, "weights are quantized"),
    ],
)
def test_what_cannot_be_run_is_refused_by_its_configuration(
    architecture: str, keys: dict, why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], **keys}))
    with pytest.raises(ModelError, match=f"{architecture}.*{why}"):
        read_shape(tmp_path)


def test_attention_that_transformers_does_not_let_go_is_refused(tmp_path: Path) -> None:
    import transformers

    config = transformers.FalconConfig(
        vocab_size=264, hidden_size=48, num_hidden_layers=1, num_attention_heads=4
    )
    transformers.FalconForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"FalconForCausalLM, whose attention .* cannot be exch"):
        TorchTrain(tmp_path)


def test_a_model_that_is_put_together_otherwise_is_refused(tmp_path: Path) -> None:
    import transformers

    config = transformers.OPTConfig(
        vocab_size=264, hidden_size=48, ffn_dim=80, num_hidden_layers=1, num_attention_heads=4
    )
    transformers.OPTForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"cannot run .* in plait's way"):
        TorchTrain(tmp_path)


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    model = foreign_model(tmp_path, "olmo2")
    file = model / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks the tensor model.layers.1.mlp.up_proj.weight"):
        TorchTrain(model)
