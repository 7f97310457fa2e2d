"""What tests of models through ``transformers`` have in common."""

from pathlib import Path

import pytest
import torch
from trainer_support import make_data

from plait.engines.torch.train.params import RunParams

# peft asks transformers for a property under its old name, and says when it saves the head.
PEFT_WARNINGS = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings:UserWarning"),
]

TOLERANCE = 1e-4


def stir(params: RunParams, scale: float, seed: int = 9) -> None:
    """Move a run off version 0, so that B matters."""
    g = torch.Generator().manual_seed(seed)
    params.flat.add_(torch.randn(params.flat.shape, generator=g), alpha=scale)


def reference(model: Path, path: str | None):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return base.eval() if path is None else PeftModel.from_pretrained(base, path).eval()


def with_prefixes() -> list:
    """Four sequences alike up to their answers, and three by themselves."""
    group = make_data([30] * 4, seed=1)
    for datum in group:
        datum.input_tokens[:18] = group[0].input_tokens[:18]
    return [*group, *make_data([9, 17, 24], seed=2)]
