"""Batches: the groups of one step to the sequences of one update, by the algorithm's name.

The update is ``Σ_t w_t · (-min(r_t A, clip(r_t) A) + kl_coef · r_t · k3_t)`` over all scored
tokens, with ``r_t`` the ratio of new to old probability (1 in the KL term if ``kl_by_ratio`` is
off) and ``k3_t = exp(ref - logp) - (ref - logp) - 1``; the engine sums, the weights made here say
what kind of mean that is.

Samples without a reward and groups without signal cost no training. With a KL term a group without
signal still pulls towards the reference, so it stays, unless no group has any signal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.algos.advantages import Advantages, Rewards, dr_grpo, grpo, reinforce_pp, rloo
from plait.algos.datums import Trajectory, datum
from plait.algos.filters import Signal, signal
from plait.algos.normalisation import Normalisation, token_weights
from plait.core.operations import Datum


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An advantage and the mean it is published with."""

    advantages: Callable[[Rewards], Advantages]
    normalisation: Normalisation


ALGORITHMS = {
    "grpo": Algorithm(advantages=grpo, normalisation="sequence-mean"),
    "dr-grpo": Algorithm(advantages=dr_grpo, normalisation="constant"),
    "rloo": Algorithm(advantages=rloo, normalisation="sequence-sum"),
    "reinforce++": Algorithm(advantages=reinforce_pp, normalisation="token-mean"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One sample and what it earned; ``reward=None``: its environment or grader failed."""

    trajectory: Trajectory
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one update trains on. ``data`` is empty if no group has signal: skip the update."""

    data: tuple[Datum, ...]
    members: tuple[tuple[int, int], ...]
    """Group and sample index of each of ``data``."""
    advantages_PG: Advantages
    signal: Signal
    n_errors: int
    """Samples without a reward."""

    @property
    def n_tokens(self) -> int:
        """Positions that the engine will compute."""
        return sum(len(d.input_tokens) for d in self.data)


def build_batch(
    groups_PG: Sequence[Sequence[Scored]], *, algorithm: str, max_tokens: int, kl_coef: float = 0.0
) -> Batch:
    """Advantages, filter, weights and sequences of one step.

    ``max_tokens`` is the most that one sample may draw over all its turns (Dr. GRPO's constant).
    """
    method = ALGORITHMS[algorithm]
    advantages_PG = method.advantages([[s.reward for s in group] for group in groups_PG])
    found = signal(advantages_PG)
    kept = set(found.with_signal)
    if kl_coef > 0 and kept:
        kept.update(found.zero_signal)
    scored = [
        (p, g, a, groups_PG[p][g].trajectory)
        for p, group in enumerate(advantages_PG)
        for g, a in enumerate(group)
        if a is not None and groups_PG[p][g].trajectory.n_sampled
    ]
    weights_B = token_weights(
        [t.n_sampled for _, _, _, t in scored], method.normalisation, max_tokens=max_tokens
    )
    members = [
        (p, g, datum(t, advantage=a, weight=w))
        for (p, g, a, t), w in zip(scored, weights_B, strict=True)
        if p in kept and (a != 0 or kl_coef > 0)
    ]
    return Batch(
        data=tuple(d for _, _, d in members),
        members=tuple((p, g) for p, g, _ in members),
        advantages_PG=advantages_PG,
        signal=found,
        n_errors=sum(s.reward is None for group in groups_PG for s in group),
    )
