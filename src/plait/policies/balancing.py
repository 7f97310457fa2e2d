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
    """bs_i of the equations, rounded down; who would get less than nothing or more than fits is
    taken out of them."""
    samples = [0] * len(view.slowdowns)
    if view.per_sample_s <= 0:
        return samples
    left, open_ = view.total, set(range(len(samples)))
    while open_:
        # Σ (c / s_i − fixed) / per_sample = left, solved for c
        inverse = sum(1.0 / view.slowdowns[i] for i in open_)
        c = (left * view.per_sample_s + len(open_) * view.fixed_s) / inverse
        share = {i: (c / view.slowdowns[i] - view.fixed_s) / view.per_sample_s for i in open_}
        none = {i for i in open_ if share[i] < 0}
        if none:
            open_ -= none
            continue
        over = {i for i in open_ if share[i] > view.most[i]}
        if not over:
            for i in open_:
                samples[i] = int(share[i])
            break
        for i in over:
            samples[i] = view.most[i]
            left -= view.most[i]
        open_ -= over
    return samples
