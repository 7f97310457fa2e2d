"""Engines under contract. To put another one under the suite, add a factory to ``KITS``.

A kit makes fresh engines of one kind over one base model. ``exact`` says that floats do not depend
on batch composition; where they do, samples may part at a near tie, and ``assert_same`` allows it:
up to the first token that differs log-probs agree within ``logprob_atol``, and most samples are
equal throughout.
"""

import atexit
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.operations import SampleResult
from plait.engines.protocol import ModelShape, RolloutEngine, TrainEngine
from plait.engines.scripted import ScriptedRollout, ScriptedTrain

MOST = 0.75
"""Share of samples that must not part where floats depend on the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKit:
    """How to make a kind of engine, and what may be expected of its floats."""

    shape: ModelShape
    block_size: int
    make_rollout: Callable[..., RolloutEngine]
    """Keywords ``n_blocks``, ``max_batch_tokens``, ``max_seqs``."""
    make_train: Callable[[], TrainEngine]
    exact: bool = True
    logprob_atol: float = 0.0

    def rollout(
        self, *, n_blocks: int = 256, max_batch_tokens: int = 64, max_seqs: int = 16
    ) -> RolloutEngine:
        return self.make_rollout(
            n_blocks=n_blocks, max_batch_tokens=max_batch_tokens, max_seqs=max_seqs
        )

    def train(self) -> TrainEngine:
        return self.make_train()

    def assert_same(self, got: SampleResult, want: SampleResult) -> None:
        """Both results are the same draw, up to what the kit says about floats."""
        if self.exact:
            assert got == want
            return
        assert len(got.samples) == len(want.samples)
        n_equal = 0
        for a, b in zip(got.samples, want.samples, strict=True):
            n_equal += a.tokens == b.tokens
            pairs = zip(a.tokens, b.tokens, a.logprobs, b.logprobs, strict=False)
            for token_a, token_b, logprob_a, logprob_b in pairs:
                if token_a != token_b:
                    break
                assert abs(logprob_a - logprob_b) <= self.logprob_atol
        assert n_equal >= MOST * len(got.samples)


def scripted() -> EngineKit:
    shape = ModelShape(
        name="scripted",
        vocab_size=259,
        max_context=128,
        n_layers=1,
        n_kv_heads=1,
        head_dim=8,
        hidden_size=8,
        n_params=1000,
        kv_bytes_per_token=64,
    )

    def rollout(**limits: Any) -> RolloutEngine:
        return ScriptedRollout(shape, block_size=4, **limits)

    return EngineKit(
        shape=shape,
        block_size=4,
        make_rollout=rollout,
        make_train=lambda: ScriptedTrain(shape),
        logprob_atol=1e-12,
    )


def torch_random(
    *, deterministic: bool = False, graphs: bool = False, by_transformers: bool = False
) -> EngineKit:
    """The torch engines over a random byte-level Llama in a directory of their own. ``graphs``:
    decode over static buffers, as on CUDA."""
    import torch
    from random_models import private_cache, random_model

    from plait.engines.torch.rollout import TorchRollout
    from plait.engines.torch.trainer import TorchTrain

    torch.set_num_threads(1)
    scratch = tempfile.TemporaryDirectory(prefix="plait-contract-")
    folder = Path(scratch.name)
    model = random_model(folder / "model")

    how = {"by_transformers": by_transformers}

    def rollout(**limits: Any) -> RolloutEngine:
        with private_cache(folder):
            return TorchRollout(
                model, block_size=4, exact=deterministic, graphs=graphs, **how, **limits
            )

    def train() -> TrainEngine:
        with private_cache(folder):
            return TorchTrain(model, exact=deterministic, **how)

    atexit.register(scratch.cleanup)
    return EngineKit(
        shape=rollout(n_blocks=8, max_batch_tokens=8, max_seqs=1).shape,
        block_size=4,
        make_rollout=rollout,
        make_train=train,
        exact=deterministic,
        logprob_atol=1e-4,
    )


KITS: dict[str, Callable[[], EngineKit]] = {
    "scripted": scripted,
    "torch": torch_random,
    "torch-static": lambda: torch_random(graphs=True),
    "torch-deterministic": lambda: torch_random(deterministic=True),
    "torch-transformers": lambda: torch_random(by_transformers=True),
}
