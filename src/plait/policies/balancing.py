"""Balancing: how one run's work is divided over workers of which some are slowed down (JigsawRL
§4.3).

After a tail has moved to worker t, the other run gets less there:

    T(bs_i) / T(bs_t) ≈ s(k_B,t, k_A)   for i ≠ t,   Σ bs fixed,   T(bs) = fixed + per_sample · bs

that is, s_i·T(bs_i) is to be equal everywhere. In whole samples, and with limits of memory, it is
the division with the smallest maximum: the real solution rounded down, and what is left over given
one by one to whoever ends first with it.

Invariants: all samples are given out, none beyond a worker's room; no other division in whole
samples has a smaller maximum.

Left to others: which samples those are; the slowdowns.
"""

from dataclasses import dataclass
from heapq import heapify, heapreplace

from plait.core.errors import RequestError
from plait.core.merging import BalancePlan, BalanceView
from plait.policies.protocol import State

ROUNDING = 1e-9
"""A share this little above a whole number may be a rounding error: one sample less is given out
again to whoever ends first, one too many could not be taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualFinish:
    """Everybody ends at the same time, as far as whole samples allow."""

    name: str = "equal-finish"

    def decide(self, view: BalanceView, state: State, now: float) -> tuple[BalancePlan, State]:
        """Samples for each worker; RequestError if there is no room for all."""
        if sum(view.most) < view.total:
            raise RequestError(
                f"{view.run_id}: {view.total} samples, but room for {sum(view.most)}: "
                "give it more workers or smaller steps"
            )
        samples = _real_solution(view)
        order = [(_ends_s(view, i, samples[i] + 1), i) for i in range(len(samples))]
        order = [(end, i) for end, i in order if samples[i] < view.most[i]]
        heapify(order)
        for _ in range(view.total - sum(samples)):
            i = order[0][1]
            samples[i] += 1
            full = samples[i] >= view.most[i]
            heapreplace(order, (float("inf") if full else _ends_s(view, i, samples[i] + 1), i))
        latest = max((_ends_s(view, i, n) for i, n in enumerate(samples)), default=0.0)
        return BalancePlan(samples=tuple(samples), predicted_s=latest), state


def _ends_s(view: BalanceView, i: int, n: int) -> float:
    return view.slowdowns[i] * (view.fixed_s + view.per_sample_s * n)


def _real_solution(view: BalanceView) -> list[int]:
    """bs_i of the equations, nobody with less than nothing or more than fits, rounded down."""
    if view.per_sample_s <= 0:
        return [0] * len(view.slowdowns)
    ends_s = _common_end(view)
    samples = []
    for slowdown, most in zip(view.slowdowns, view.most, strict=True):
        share = (ends_s / slowdown - view.fixed_s) / view.per_sample_s
        samples.append(min(most, max(0, int(share - ROUNDING))))
    return samples


def _common_end(view: BalanceView) -> float:
    """When all end, could samples be divided: the c of Σ (c / s_i − fixed) / per_sample = total.

    A worker takes part from the c on at which it would begin, until the one at which it is full;
    in between the sum rises in a straight line.
    """
    turns: list[tuple[float, float]] = []
    for i, (slowdown, most) in enumerate(zip(view.slowdowns, view.most, strict=True)):
        rate = 1.0 / (slowdown * view.per_sample_s)
        turns += [(slowdown * view.fixed_s, rate), (_ends_s(view, i, most), -rate)]
    given, slope, before = 0.0, 0.0, 0.0
    for at, change in sorted(turns):
        if given + slope * (at - before) >= view.total and slope > 0:
            return before + (view.total - given) / slope
        given += slope * (at - before)
        slope, before = slope + change, at
    return before
