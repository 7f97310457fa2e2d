"""Shape: what ``config.json`` alone says about a model. No weights are read."""

import json
from pathlib import Path
from typing import Any

from plait.core.errors import ModelError
from plait.engines.protocol import ModelShape

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""What the embedded engine's own forward covers."""

KV_BYTES = 4
"""A shape counts the cache in fp32, which is what a CPU keeps: sampler and trainer then agree on
log-probs to 1e-4."""


def read_shape(path: str | Path, *, name: str = "") -> ModelShape:
    """Numbers of the model in directory ``path``; ModelError if one is missing."""
    where = Path(path)
    config = check_architecture(where)
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        layers = int(config["num_hidden_layers"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or hidden // heads)
        return ModelShape(
            name=name or where.name,
            vocab_size=int(config["vocab_size"]),
            max_context=int(config["max_position_embeddings"]),
            n_layers=layers,
            n_kv_heads=kv_heads,
            head_dim=head_dim,
            hidden_size=hidden,
            n_params=_n_params(config, hidden, layers, heads, kv_heads, head_dim),
            kv_bytes_per_token=2 * layers * kv_heads * head_dim * KV_BYTES,
        )
    except KeyError as error:
        raise ModelError(f"{where}/config.json has no {error}: save the model again") from error


def check_architecture(path: Path) -> dict[str, Any]:
    """The configuration in ``path`` if it names a supported architecture, else ModelError."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file} ({error}): give a Hugging Face directory") from error
    named = config.get("architectures") or [] if isinstance(config, dict) else []
    if not any(a in ARCHITECTURES for a in named):
        raise ModelError(
            f"{path} is a {', '.join(named) or 'model without an architecture'}: "
            f"supported are {', '.join(ARCHITECTURES)}"
        )
    return dict(config)


def _n_params(
    config: dict[str, Any], hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int
) -> int:
    qwen2, qwen3 = (f"{q}ForCausalLM" in config["architectures"] for q in ("Qwen2", "Qwen3"))
    out, kv_out = heads * head_dim, kv_heads * head_dim
    block = 2 * hidden * out + 2 * hidden * kv_out + 3 * hidden * int(config["intermediate_size"])
    block += 2 * hidden
    # Llama has biases where the file says so; Qwen2 has them on q, k, v always.
    if qwen2 or config.get("attention_bias"):
        block += out + 2 * kv_out + (0 if qwen2 else hidden)
    if qwen3:
        block += 2 * head_dim
    if config.get("mlp_bias"):
        block += 2 * int(config["intermediate_size"]) + hidden
    tables = 1 if config.get("tie_word_embeddings", False) else 2
    return layers * block + tables * int(config["vocab_size"]) * hidden + hidden
