"""Models: randomly initialised, in the shape of Qwen3-0.6B or far smaller."""

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.figure import Measured
from plait.models.tiny import write_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is measured on: a model's sizes, where it lies and what runs on it."""

    hidden: int
    inter: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    device: str
    dtype: torch.dtype
    context: int
    new: int
    batches: tuple[int, ...]
    samples: int
    """Sequences of one training batch, in groups of eight."""


GPU = Shape(
    hidden=1024,
    inter=3072,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    vocab=151_936,
    device="cuda",
    dtype=torch.bfloat16,
    context=512,
    new=64,
    batches=(64, 256),
    samples=64,
)
SMALL = Shape(
    hidden=64,
    inter=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=512,
    device="cpu",
    dtype=torch.float32,
    context=12,
    new=4,
    batches=(8,),
    samples=8,
)
"""For the test that the measurements run at all."""


@functools.cache
def make(shape: Shape) -> Path:
    """A model directory with random weights, the same for all figures of a process."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inter,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    folder = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def missing_device() -> Measured:
    """What a machine without a GPU leaves behind."""
    return Measured(value=0.0, ok=False, detail={"not measured": "no CUDA device"})
