"""Rooms: when each node group is expected to have room for a run, as those that it has end.

A row for each group: its runs, the last to end first; and what stays of load and memory when all
but the first k of them have ended. So when there is room for a new head of the queue takes a few
operations on arrays, whatever the number of groups.

Left to others: for whom a group is kept (``reservation``), whether a run fits in a ring
(``node_search``).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.placement import Demand, PlacedRun, WaitingRun
from plait.policies.rings import CAPACITY, Floats

Bound = Mapping[str, Mapping[str, Any]]
"""By run, among other things ``until``: when it is expected to have ended, ``None`` if nobody
knows."""


class Rooms:
    """Of all groups."""

    def __init__(self) -> None:
        self._ends_s: Floats = np.zeros((0, 0))
        self._load: Floats = np.zeros((0, 0))
        self._bytes: Floats = np.zeros((0, 0))

    def follow(
        self, fresh: Iterable[int], runs: Sequence[Sequence[PlacedRun]], bound: Bound
    ) -> None:
        """``fresh``: the groups that have changed."""
        widest = max((len(runs[i]) for i in fresh), default=0)
        if len(runs) != len(self._load) or widest > self._load.shape[1]:
            shape, fresh = (len(runs), max(map(len, runs), default=0)), range(len(runs))
            # Of runs that are not there: they have ended, and left no room.
            self._ends_s, self._load = np.full(shape, -inf), np.full(shape, inf)
            self._bytes = np.full(shape, inf)
        for i in fresh:
            left = [(_until(run, bound), mean(run.demand), run.host_bytes) for run in runs[i]]
            left.sort(reverse=True)
            n = len(left)
            self._ends_s[i], self._load[i], self._bytes[i] = -inf, inf, inf
            self._ends_s[i, :n] = [end_s for end_s, _, _ in left]
            self._load[i, :n] = list(accumulate((load for _, load, _ in left), initial=0.0))[:n]
            self._bytes[i, :n] = list(accumulate((n for _, _, n in left), initial=0))[:n]

    def at(self, head: WaitingRun, host_bytes: Floats, now: float) -> Floats:
        """When the means of demand and memory leave room for the head, as runs end one by one, of
        each group; its last end where they never do."""
        n_groups, width = self._load.shape
        if width == 0:
            return np.full(n_groups, now)
        room_bytes = host_bytes - head.host_bytes
        fits: NDArray[np.bool_] = self._load + mean(head.demand) <= CAPACITY
        fits &= self._bytes <= room_bytes[:, None]
        # The run that ends before k are left is number k: the largest k is the earliest.
        last = width - 1 - fits[:, ::-1].argmax(axis=1)
        k = np.where(fits.any(axis=1), last, 0)
        return np.maximum(now, self._ends_s[np.arange(n_groups), k])


def _until(run: PlacedRun, bound: Bound) -> float:
    end_s = bound.get(run.run_id, {}).get("until")
    return inf if end_s is None else float(end_s)


def mean(demand: Demand | None) -> float:
    """Share of a group that it takes on average; all where it is not known."""
    return 1.0 if demand is None else sum(demand.bins) / len(demand.bins)
