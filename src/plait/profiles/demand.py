"""Demand: when in its step a run uses its node group, for placement (PlexRL, placement).

Each finished step gives a trace: the share of the group's devices over ``BINS`` parts of the step.
Traces are fading means over a step's own length, and so is the period; both follow drift. A step of
quite another length (a checkpoint, an evaluation, a lost worker) is set aside; ``ODD`` of them in a
row are the new length, and the profile begins anew with them.

Invariants: bins in [0, 1]; the mean of the bins is the fading mean of the steps' busy share; before
the first step there is no demand (the run is cold); values are immutable.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from plait.core.placement import Demand

BINS = 64
"""A sixty-fourth of a step is finer than a step's jitter from one to the next."""
DECAY = 0.7
"""Weight of the past at each step, as for the sub-stage graph: about three deep."""
ODD_RATIO = 1.5
"""A step this much longer or shorter than usual is another kind of step: lengths vary by half at
most between the steps of a tool-using run (JigsawRL §3.1), and drift by far less."""
ODD = 2
"""So many in a row are no accident."""
STALE_PERIOD = 0.1
STALE_AREA = 0.1
"""From so much relative change of the period, or of the busy area, a placement made with an older
demand is to be looked at again: below, bins still lie where they were reckoned with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Devices in use: ``share`` of the group from ``t0_s`` to ``t1_s``."""

    t0_s: float
    t1_s: float
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandProfile:
    """A run's recent steps, fading."""

    n_steps: int = 0
    weight: float = 0.0
    period_s: float = 0.0
    """Sum with weights, as are the next two."""
    square_s2: float = 0.0
    bins: tuple[float, ...] = ()
    odd: tuple[tuple[float, tuple[float, ...]], ...] = ()
    """Periods and traces that are set aside."""


def trace(busy: Iterable[Busy], t0_s: float, t1_s: float, n_bins: int = BINS) -> tuple[float, ...]:
    """Share of the group in each part of the step; what overlaps adds up, to at most 1."""
    width_s = (t1_s - t0_s) / n_bins
    bins = [0.0] * n_bins
    if width_s <= 0:
        return tuple(bins)
    for b in busy:
        begin, end = max(b.t0_s, t0_s), min(b.t1_s, t1_s)
        first = int((begin - t0_s) / width_s)
        for i in range(first, n_bins):
            low = t0_s + i * width_s
            if low >= end:
                break
            bins[i] += b.share * max(0.0, min(end, low + width_s) - max(begin, low)) / width_s
    return tuple(min(1.0, max(0.0, x)) for x in bins)


def update(profile: DemandProfile, t0_s: float, t1_s: float, busy: Iterable[Busy]) -> DemandProfile:
    """The profile after a step from ``t0_s`` to ``t1_s``; one of no length is ignored."""
    period_s = t1_s - t0_s
    if not period_s > 0:
        return profile
    bins = trace(busy, t0_s, t1_s)
    if profile.weight > 0:
        usual_s = profile.period_s / profile.weight
        if max(period_s / usual_s, usual_s / period_s) > ODD_RATIO:
            odd = (*profile.odd, (period_s, bins))
            if len(odd) < ODD:
                return replace(profile, odd=odd)
            again = DemandProfile()
            for its_period_s, its_bins in odd:
                again = _add(again, its_period_s, its_bins)
            return again
    return _add(profile, period_s, bins)


def demand(profile: DemandProfile) -> Demand | None:
    """What placement is told; ``None`` while the run is cold."""
    if profile.weight <= 0:
        return None
    return Demand(
        period_s=profile.period_s / profile.weight,
        bins=tuple(min(1.0, x / profile.weight) for x in profile.bins),
    )


def jitter(profile: DemandProfile) -> float:
    """Standard deviation of recent periods over their mean; 0 before there are two."""
    if profile.n_steps < 2:
        return 0.0
    mean_s = profile.period_s / profile.weight
    variance = max(0.0, profile.square_s2 / profile.weight - mean_s * mean_s)
    return float(variance**0.5) / mean_s


def stale(used: Demand, fresh: Demand) -> bool:
    """True if a placement that was made with ``used`` should be fitted again to ``fresh``."""
    if abs(fresh.period_s / used.period_s - 1.0) > STALE_PERIOD:
        return True
    a, b = resample(used.bins, BINS), resample(fresh.bins, BINS)
    moved = sum(abs(x - y) for x, y in zip(a, b, strict=True))
    return moved > STALE_AREA * max(sum(a), sum(b))


def resample(bins: Sequence[float], n_bins: int) -> tuple[float, ...]:
    """The same trace in another number of bins; its mean stays."""
    edges = [i / len(bins) for i in range(len(bins) + 1)]
    parts = [
        Busy(t0_s=a, t1_s=b, share=share)
        for share, (a, b) in zip(bins, pairwise(edges), strict=True)
    ]
    return trace(parts, 0.0, 1.0, n_bins)


def _add(profile: DemandProfile, period_s: float, bins: tuple[float, ...]) -> DemandProfile:
    past = profile.bins or (0.0,) * len(bins)
    return DemandProfile(
        n_steps=profile.n_steps + 1,
        weight=DECAY * profile.weight + 1.0,
        period_s=DECAY * profile.period_s + period_s,
        square_s2=DECAY * profile.square_s2 + period_s * period_s,
        bins=tuple(DECAY * a + b for a, b in zip(past, bins, strict=True)),
    )
