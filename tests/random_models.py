"""Random models of each supported family, small enough to build in every test session.

Weights are drawn wide, so that the families' parts (biases, head norms, scaled rotations) show in
the logits. The tokenizer is that of the shipped byte-level model; no end token unless asked for.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VOCAB_SIZE = 264
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
BASE: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied-bias": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "llama-llama3-rope": {"rope_parameters": LLAMA3_ROPE},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
}


@contextmanager
def private_cache(folder: Path) -> Iterator[None]:
    """Keep what is derived from a passing model out of the user's cache."""
    old = os.environ.get("PLAIT_CACHE")
    os.environ["PLAIT_CACHE"] = str(folder / "cache")
    try:
        yield
    finally:
        if old is None:
            del os.environ["PLAIT_CACHE"]
        else:
            os.environ["PLAIT_CACHE"] = old


def random_model(
    folder: Path, family: str = "llama", *, seed: int = 0, eos: int | None = None
) -> Path:
    """Write a Hugging Face directory of a two-layer model into ``folder`` and return it."""
    import torch
    from safetensors.torch import save_file

    from plait.models.tiny import write_tokenizer

    name = family.partition("-")[0]
    config = BASE | FAMILIES[family] | {"model_type": name, "eos_token_id": eos}
    config["architectures"] = [f"{name.capitalize()}ForCausalLM"]
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        key: torch.randn(shape, generator=generator) * (0.15 if len(shape) > 1 else 0.3)
        + float(key.endswith("norm.weight"))
        for key, shape in _shapes(config).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    for file in ("generation_config.json", "tokenizer_config.json"):
        content = json.loads((folder / file).read_text())
        content.pop("eos_token", None)
        (folder / file).write_text(json.dumps(content | {"eos_token_id": eos}))
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's tensors, as ``transformers`` has them."""
    hidden, inter, e = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * e, config["num_key_value_heads"] * e
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = (config["vocab_size"], hidden)
    qkv_bias = config.get("attention_bias") or config["model_type"] == "qwen2"
    linear = {
        "self_attn.q_proj": (q, hidden, qkv_bias),
        "self_attn.k_proj": (kv, hidden, qkv_bias),
        "self_attn.v_proj": (kv, hidden, qkv_bias),
        "self_attn.o_proj": (hidden, q, config.get("attention_bias")),
        "mlp.gate_proj": (inter, hidden, config.get("mlp_bias")),
        "mlp.up_proj": (inter, hidden, config.get("mlp_bias")),
        "mlp.down_proj": (hidden, inter, config.get("mlp_bias")),
    }
    for i in range(config["num_hidden_layers"]):
        stem = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"{stem}{norm}.weight"] = (hidden,)
        if config["model_type"] == "qwen3":
            out |= {f"{stem}self_attn.{x}_norm.weight": (e,) for x in "qk"}
        for module, (n_out, n_in, bias) in linear.items():
            out[f"{stem}{module}.weight"] = (n_out, n_in)
            if bias:
                out[f"{stem}{module}.bias"] = (n_out,)
    return out
