"""Merging: whether the tails of one run's rollout move together (JigsawRL §4.3).

Tails k_i of a run on workers i, each beside a sub-stage k_i' of another run, move to the target t
with the largest gain, if it is positive:

    ΔT       = T_origin − T_migr
    T_origin = max_i s(k_i, k_i')·T(k_i) + max_i s(k_i', k_i)·T(k_i')
    T_migr   = T(K) + Σ_{i≠t} M(k_i) + max( s(k_t', K)·T(k_t'), max_{i≠t} T(k_i') )

Invariants: a target has room for what moves there; nothing moves without a gain; samples never
move away from a worker that is chosen.

Left to others: T(K) and M(k_i), which the view states; the move itself, which recomputes keys and
values or copies them and reserves its destination first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from plait.core.merging import MergePlan, MergeView, Tail
from plait.core.substages import Substage
from plait.policies.protocol import State
from plait.profiles.slowdown import Analytic, Slowdown

HALF = 0.5
"""Of the compute, for each of two sub-stages on one worker: what they do to each other is compared,
not how the worker is divided, which is co-location's decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GainMerging:
    """Merge by ΔT."""

    name: str = "gain"
    slowdown: Slowdown = field(default_factory=Analytic)

    def decide(self, view: MergeView, state: State, now: float) -> tuple[MergePlan, State]:
        """The target with the largest gain, or none."""
        if len(view.tails) < 2:
            return MergePlan(target=None, gain_s=0.0, reason="only one worker has a tail"), state
        origin_s = self._origin_s(view.tails)
        gains = [
            (origin_s - self._merged_s(view, t), t)
            for t in range(len(view.tails))
            if _moved_bytes(view, t) <= view.free_bytes[t]
        ]
        if not gains:
            return MergePlan(target=None, gain_s=0.0, reason="no worker has room for all"), state
        gain_s, t = max(gains, key=lambda g: (g[0], -g[1]))
        if gain_s <= 0:
            reason = f"moving would cost {-gain_s:.2f} s more than it saves"
            return MergePlan(target=None, gain_s=gain_s, reason=reason), state
        reason = f"saves {gain_s:.2f} s of {origin_s:.2f} s"
        return MergePlan(target=view.tails[t].worker, gain_s=gain_s, reason=reason), state

    def _origin_s(self, tails: Sequence[Tail]) -> float:
        slowed = [self._pair(t.substage, t.beside) for t in tails]
        return max(own for own, _ in slowed) + max(other for _, other in slowed)

    def _merged_s(self, view: MergeView, t: int) -> float:
        """T_migr with the samples of all on the worker of tail ``t``."""
        target = view.tails[t]
        others = [tail for i, tail in enumerate(view.tails) if i != t]
        together = replace(
            target.substage,
            work_s=view.merged_s[t],
            tokens=sum(tail.substage.tokens for tail in view.tails),
            n_samples=sum(tail.substage.n_samples for tail in view.tails),
        )
        _, beside_s = self._pair(together, target.beside)
        free_s = max((tail.beside.work_s for tail in others if tail.beside), default=0.0)
        return together.work_s + sum(tail.migrate_s for tail in others) + max(beside_s, free_s)

    def _pair(self, own: Substage, beside: Substage | None) -> tuple[float, float]:
        """Seconds of the two side by side; alone where there is no other."""
        if beside is None:
            return own.work_s, 0.0
        mine = self.slowdown(own, beside, HALF, 1.0) * own.work_s
        return mine, self.slowdown(beside, own, HALF, 1.0) * beside.work_s


def _moved_bytes(view: MergeView, t: int) -> int:
    return sum(size for i, size in enumerate(view.moved_bytes) if i != t)
