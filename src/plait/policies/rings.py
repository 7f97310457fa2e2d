"""Ring: a node group's cyclic horizon, and what a run's demand adds to it (PlexRL §4, Fig. 4).

The horizon of H seconds is a ring of B bins. A run's step is projected on it as often as it fits:
n = round(H / period) times, *its period scaled* so that whole steps fill the ring. H is at least
four of the longest periods, so that is wrong by an eighth at most. The alternative, a common
multiple of all periods, is unbounded and changes whenever one of them drifts. Scaling is also what
happens: a run that is a little faster than the one it shares with catches up with its busy span, is
made to wait there, and from then on follows it, step by step.

Invariants: projecting keeps the mean of a trace; shifting keeps its values. Bins are shares of the
group's devices; 1 is all of them. Left to others: which group, which runs (``node_groups``).
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, log2
from typing import cast

import numpy as np
from numpy.typing import NDArray

from plait.core.placement import Demand

Floats = NDArray[np.float64]

BINS = 256
"""Of a ring: 32 to 64 for a step of the longest period, more than its stages are likely to have."""
LEAST_STEPS = 4
"""Of the longest period in a horizon: bounds the error of scaling at 1/8."""
PHASES = 32
"""Tried at most per run: 3 % of a step apart, below its jitter."""
CAPACITY = 1.0
"""All of a group's devices."""
PROJECTED = 4096
"""Projections that are kept, 2 kB each: all runs of a large cluster, whose groups are summed up
again whenever one of their runs comes or goes."""
TRIED = 256
"""Demands whose trials are kept, up to 64 kB each: those of the runs that wait longest."""
USED = 1e-9
"""Below it a bin is idle, but for rounding."""


def horizon(longest_s: float) -> float:
    """Seconds of a ring for steps of at most ``longest_s``: a power of two, so that drifting
    periods seldom change it."""
    if longest_s <= 0.0:
        return 1.0
    return float(2.0 ** ceil(log2(LEAST_STEPS * longest_s)))


def steps(demand: Demand, horizon_s: float) -> int:
    """How often the run's step is on the ring."""
    return max(1, round(horizon_s / demand.period_s))


@lru_cache(maxsize=PROJECTED)
def project(demand: Demand | None, phase_s: float, horizon_s: float) -> Floats:
    """The run's share of the group's devices in each bin of the ring; all where none is known.
    Not to be written to."""
    if demand is None:
        ring = np.full(BINS, CAPACITY)
    else:
        ring = _projected(demand, phase_s, steps(demand, horizon_s))
    ring.flags.writeable = False
    return ring


def _projected(demand: Demand, phase_s: float, n: int) -> Floats:
    bins = np.asarray(demand.bins, dtype=np.float64)
    edges, integral = _edges(n) - phase_s / demand.period_s, np.empty(len(bins) + 1)
    integral[0] = 0.0
    np.cumsum(bins / len(bins), out=integral[1:])
    whole = np.floor(edges)
    up_to = np.interp(edges - whole, np.linspace(0.0, 1.0, len(integral)), integral)
    return cast(Floats, np.diff(whole * integral[-1] + up_to) * (BINS / n))


@lru_cache(maxsize=PROJECTED)
def phases(demand: Demand | None, horizon_s: float) -> tuple[NDArray[np.intp], Floats]:
    """Shifts to try, in bins within one step, and the same in seconds of the run's own step. Not to
    be written to."""
    if demand is None:
        shifts, phases_s = np.zeros(1, dtype=np.intp), np.zeros(1)
    else:
        width = BINS / steps(demand, horizon_s)
        shifts = np.arange(0, max(1, ceil(width)), max(1, ceil(width / PHASES)))
        phases_s = shifts / width * demand.period_s
    shifts.flags.writeable = phases_s.flags.writeable = False
    return shifts, phases_s


def shifted(trace: Floats, shifts: Sequence[int] | NDArray[np.intp]) -> Floats:
    """``d[(b − φ) mod B]``: a row for each shift φ."""
    where = (np.arange(BINS)[None, :] - np.asarray(shifts)[:, None]) % BINS
    return cast(Floats, trace[where])


@lru_cache(maxsize=TRIED)
def trials(demand: Demand | None, horizon_s: float) -> Floats:
    """A row of the ring for each phase to try. Not to be written to."""
    traces = shifted(project(demand, 0.0, horizon_s), phases(demand, horizon_s)[0])
    traces.flags.writeable = False
    return traces


def overlaps(load: Floats, shifted_traces: Floats) -> Floats:
    """``Σ_b max(0, L[b] + d[(b − φ) mod B] − cap)`` of each shift, in bins."""
    above = np.maximum(load + (shifted_traces - CAPACITY), 0.0)
    return cast(Floats, above.sum(axis=1))


def widened(trace: Floats, n_bins: int) -> Floats:
    """The highest value within ``n_bins`` of each bin: where the run may be, if it is early or
    late."""
    reach = np.arange(-n_bins, n_bins + 1)
    where = (np.arange(BINS)[:, None] + reach[None, :]) % BINS
    return cast(Floats, trace[where].max(axis=1))


def delay_s(over: Floats, trace: Floats, demand: Demand | None, horizon_s: float) -> float:
    """By how much a step of the run is made longer: all that is too much in the bins that it uses,
    as if the others always went first. An upper bound."""
    n = 1 if demand is None else steps(demand, horizon_s)
    return float(over[trace > USED].sum()) * horizon_s / BINS / n


@lru_cache(maxsize=1024)
def _edges(n: int) -> Floats:
    edges: Floats = np.arange(BINS + 1, dtype=np.float64) * (n / BINS)
    edges.flags.writeable = False
    return edges


def nothing() -> Floats:
    """The ring of a group on which nobody is."""
    return np.zeros(BINS)
