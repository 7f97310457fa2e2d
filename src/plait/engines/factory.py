"""Engines by name: what a worker process builds from its configuration.

``torch`` and ``scripted`` are built in; ``module:function`` names a function that takes the
``EngineConfig`` and returns ``Engines``.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

from plait.core.errors import ConfigError
from plait.engines.protocol import ModelShape, RolloutEngine, TrainEngine

BLOCK_SIZE = 4
"""Tokens per cache block: a turn computes anew what its prefix has beyond whole blocks, so smaller
ones save a fifth of a multi-turn job's prefill (4 against 16, SmolLM2); decoding is as fast."""

TRAIN_BYTES = 750_000_000
"""Activations of the micro-batches under way: two of some 340 tokens of a 135 M model on a CPU, or
one of 512 (measured: 1,300 in all gain a tenth more, for twice the memory)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine needs to know of its worker."""

    model_dir: str
    rollout: bool
    train: bool
    kv_blocks: int
    block_size: int
    max_seqs: int
    train_memory_bytes: int
    device: str = "cpu"
    """``cpu`` or ``cuda:N``."""
    dtype: str = "fp32"
    """``fp32`` or ``bf16``."""
    options: dict[str, float] = field(default_factory=dict)
    on_layer: Callable[[], None] = lambda: None
    """To be called between the layers of a step: the number of threads may change there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The engines of one worker, and how to give them threads."""

    rollout: RolloutEngine | None
    train: TrainEngine | None
    shape: ModelShape
    set_threads: Callable[[int], None]
    peak_flops: Callable[[], float]


def make_engines(name: str, config: EngineConfig) -> Engines:
    """Build the engines of one worker; ConfigError if ``name`` is unknown."""
    if name == "torch":
        from plait.engines.torch.build import build as build_torch

        return build_torch(config)
    if name == "scripted":
        from plait.engines.scripted.build import build as build_scripted

        return build_scripted(config)
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(f"unknown engine {name!r}: use torch, scripted or module:function")
    built = getattr(importlib.import_module(module), attribute)(config)
    if not isinstance(built, Engines):
        raise ConfigError(f"{name} returned {type(built).__name__}, not plait.engines.Engines")
    return built
