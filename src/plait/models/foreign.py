"""Foreign: models that are run through ``transformers``, as far as their files alone tell.

Says which architectures are out of the question before anything is loaded; what only the loaded
model shows (its attention, its linear layers) is ``engines.torch.fallback``'s to try.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plait.core.errors import ModelError

OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "seq_length"),
}
"""What some families call the numbers that most have in common."""

EXPERTS = re.compile(r"experts|moe_")
STATES = re.compile(
    r"mamba|ssm_|state_size|conv_kernel|linear_attn|linear_num|rwkv|xlstm|lru_width"
)
OTHER_SENSES = re.compile(r"(vision|audio|text|speech|image|thinker|talker)_config$")

LAYER = re.compile(r"\.\d+\..*?([^.]+)\.weight$")
"""A tensor inside a numbered block, and its module's name."""


def architectures(config: dict[str, Any]) -> list[str]:
    """The names that the configuration gives its architecture."""
    named = config.get("architectures") or []
    return [str(name) for name in named] if isinstance(named, list) else []


def why_not(config: dict[str, Any]) -> str:
    """Why no model of this configuration can be run; empty if it may be."""
    named = architectures(config)
    name = named[0] if named else ""
    set_keys = [key for key, value in config.items() if value not in (None, False, 0, [], {})]
    kinds = set(config.get("layer_types") or ()) - {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
    }
    reasons = (
        (config.get("is_encoder_decoder"), "it has an encoder"),
        (any(OTHER_SENSES.search(k) for k in set_keys), "it is not a model of text alone"),
        (any(EXPERTS.search(k) for k in set_keys) or "moe" in name.lower(), "it has experts"),
        (
            any(STATES.search(k) for k in set_keys) or STATES.search(name.lower()),
            "it keeps a state that is no attention cache",
        ),
        (bool(kinds), f"it has layers of {', '.join(sorted(map(str, kinds)))}"),
        ("quantization_config" in set_keys, "its weights are quantized"),
        (not name.endswith("ForCausalLM"), "it is no causal language model of transformers"),
    )
    return next((why for wrong, why in reasons if wrong), "")


def normal(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with its numbers under their usual names, and the context within which a
    token's rotation does not depend on how long the longest sequence of a batch is."""
    found = dict(config)
    for name, others in OTHER_NAMES.items():
        for other in others:
            if name not in found and other in config:
                found[name] = config[other]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(rope, dict) and "longrope" in (rope.get("rope_type"), rope.get("type")):
        old = rope.get("original_max_position_embeddings")
        found["max_position_embeddings"] = (
            old
            or config.get("original_max_position_embeddings")
            or found.get("max_position_embeddings")
        )
    return found


def read_headers(path: Path) -> tuple[int, tuple[str, ...]]:
    """Number of weights, and names of the linear layers in the model's blocks, by the headers of
    its safetensors; ModelError if one cannot be read."""
    n_params, names = 0, set()
    for tensor, entry in _entries(path):
        n_params += math.prod(entry["shape"])
        if len(entry["shape"]) == 2 and (match := LAYER.search(tensor)):
            names.add(match[1])
    return n_params, tuple(sorted(names))


def dtypes(path: Path) -> set[str]:
    """Number formats of the weights, as safetensors call them."""
    return {entry["dtype"] for _, entry in _entries(path)}


def _entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(path.glob("*.safetensors")):
        try:
            with file.open("rb") as f:
                header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {file} ({error}): save the model again") from error
        yield from ((name, entry) for name, entry in header.items() if name != "__metadata__")
