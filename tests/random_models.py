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
    import transformers

    from plait.models.tiny import write_tokenizer

    name = family.partition("-")[0].capitalize()
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        **{"tie_word_embeddings": False, "eos_token_id": eos, "bos_token_id": None}
        | FAMILIES[family],
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(
                torch.randn_like(tensor) * (0.15 if tensor.dim() > 1 else 0.3) + (tensor == 1)
            )
    model.generation_config.eos_token_id = eos
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    model.save_pretrained(folder)
    _set_eos(folder, eos)
    return folder


def _set_eos(folder: Path, eos: int | None) -> None:
    for file in ("generation_config.json", "tokenizer_config.json"):
        content = json.loads((folder / file).read_text())
        content.pop("eos_token", None)
        content["eos_token_id"] = eos
        (folder / file).write_text(json.dumps(content))
