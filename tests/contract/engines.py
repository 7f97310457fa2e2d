"""Engines under contract. To put another one under the suite, add a factory to ``KITS``.

A kit makes fresh engines of one kind over one base model. ``exact`` says that floats do not depend
on batch composition; where they do, samples may part at a near tie, and ``assert_same`` allows it:
up to the first token that differs log-probs agree within ``logprob_atol``, and most samples are
equal throughout.
"""

from collections.abc import Callable
from dataclasses import dataclass
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


KITS: dict[str, Callable[[], EngineKit]] = {"scripted": scripted}
