"""Shape: what a model's ``config.json`` and the headers of its weights say. No weights are read.

Decides which way a model is run: by the embedded engine's own forward, or through ``transformers``
(``foreign``).
"""

import json
from pathlib import Path
from typing import Any

from plait.core.errors import ModelError
from plait.core.runs import HEAD, TARGETS
from plait.engines.protocol import ModelShape
from plait.models import foreign

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""What the embedded engine's own forward covers."""

ROPES = ("default", "linear", "llama3")
"""Rotary scalings that it covers."""

KV_BYTES = 4
"""A shape counts the cache in fp32, which is what a CPU keeps: sampler and trainer then agree on
log-probs to 1e-4."""


def read_shape(path: str | Path, *, name: str = "") -> ModelShape:
    """Numbers of the model in directory ``path``; ModelError if one is missing."""
    where = Path(path)
    config = check_architecture(where)
    own = not why_not_own(config)
    found = config if own else foreign.normal(config)
    try:
        heads = int(found["num_attention_heads"])
        hidden = int(found["hidden_size"])
        layers = int(found["num_hidden_layers"])
        kv_heads = int(found.get("num_key_value_heads") or heads)
        head_dim = int(found.get("head_dim") or hidden // heads)
        linear_layers: tuple[str, ...] = TARGETS
        if own:
            n_params = _n_params(config, hidden, layers, heads, kv_heads, head_dim)
        else:
            n_params, in_blocks = foreign.read_headers(where)
            linear_layers = (*in_blocks, HEAD)
        return ModelShape(
            name=name or where.name,
            vocab_size=int(found["vocab_size"]),
            max_context=int(found["max_position_embeddings"]),
            n_layers=layers,
            n_kv_heads=kv_heads,
            head_dim=head_dim,
            hidden_size=hidden,
            n_params=n_params,
            kv_bytes_per_token=2 * layers * kv_heads * head_dim * KV_BYTES,
            linear_layers=linear_layers,
            by_transformers=not own,
        )
    except KeyError as error:
        raise ModelError(f"{where}/config.json has no {error}: save the model again") from error


def check_architecture(path: Path) -> dict[str, Any]:
    """The configuration in ``path`` if a model of its architecture can be run, else ModelError."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {file} ({error}): give a Hugging Face directory") from error
    config = config if isinstance(config, dict) else {}
    if why_not_own(config) and (why := foreign.why_not(config)):
        raise ModelError(
            f"{path} {_called(config)}, and {why}: supported are {', '.join(ARCHITECTURES)}, and "
            "through transformers any other dense text model"
        )
    return config


def why_not_own(config: dict[str, Any]) -> str:
    """Why the own forward does not cover this configuration; empty if it does."""
    named = foreign.architectures(config)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    part = config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0))
    reasons = (
        (not named or named[0] not in ARCHITECTURES, _called(config)),
        (config.get("use_sliding_window"), "uses sliding-window attention"),
        (config.get("hidden_act", "silu") != "silu", f"uses {config.get('hidden_act')}, not silu"),
        (part != 1.0, "rotates only a part of each head"),
        (kind not in ROPES, f"uses rope type {kind}"),
    )
    return next((why for wrong, why in reasons if wrong), "")


def _called(config: dict[str, Any]) -> str:
    named = foreign.architectures(config)
    return f"is a {named[0]}" if named else "is a model without an architecture"


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
