"""Group ring: what follows from the runs that one node group has, worked out once.

A binding that is not applied is made again at the next decision, and the one after: the group is
then as it was before it, so its sums are taken over. What is worked out of a group's facts is kept
while these are the same object, and a run that joins is added to the sums, not all summed up again.

Invariants: everything here follows from ``runs`` and the horizon alone; floats are added in the
order of the runs, so a sum that grew is the sum made from scratch, bit by bit. Left to others: what
is kept of several groups (``node_search``), the entry's form (``node_index``).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from plait.core.placement import Binding, GroupFacts, PlacedRun
from plait.policies import node_index, rings
from plait.policies.node_index import Entry
from plait.policies.rings import Floats

REPHASE = 0.02
"""Of the horizon: by so much the overlap must fall for a bound run to be shifted; less than the
distance of two phases is not worth a disturbance."""


class GroupRing:
    """Of one group with these runs, on one horizon."""

    __slots__ = ("_joined", "_shift", "entry", "horizon_s", "load", "number", "runs")

    def __init__(self, runs: Sequence[PlacedRun], horizon_s: float) -> None:
        self.runs, self.horizon_s = runs, horizon_s
        self.entry: Entry | None = None
        """Made of exactly these runs; ``None`` while nobody has asked."""
        self.load: Floats | None = None
        """Of each bin, once it is known."""
        self.number: tuple[int, int] | None = None
        """In which numbering, and which (``node_search``)."""
        self._shift: tuple[Binding, ...] | None = None
        self._joined: tuple[PlacedRun, GroupRing] | None = None
        """Who joined last, and what came of it."""

    def made(self) -> Entry:
        """The entry."""
        if self.entry is None:
            self.entry = node_index.entry(self.runs, self.horizon_s)
        return self.entry

    def joined(self, run: PlacedRun) -> "GroupRing":
        """With one run more; the same where the same run joins again."""
        if self._joined is None or self._joined[0] != run:
            ring = GroupRing((*self.runs, run), self.horizon_s)
            ring.entry = node_index.entry(ring.runs, self.horizon_s, self.entry)
            self._joined = run, ring
        return self._joined[1]

    def shift(self, group: GroupFacts) -> tuple[Binding, ...]:
        """Better phases for its runs, where their demand has drifted."""
        if self._shift is None:
            self._shift = tuple(_rephased(group, self.horizon_s))
        return self._shift


def _rephased(group: GroupFacts, horizon_s: float) -> Iterator[Binding]:
    """Better phases for the runs of a group whose demand has drifted, one run after the other."""
    if len(group.runs) < 2 or any(run.demand is None for run in group.runs):
        return
    traces = {r.run_id: rings.project(r.demand, r.phase_s, horizon_s) for r in group.runs}
    load = sum(traces.values(), rings.nothing())
    for run in group.runs:
        over = float(np.maximum(load - rings.CAPACITY, 0.0).sum())
        if over < REPHASE * rings.BINS:
            return
        rest = load - traces[run.run_id]
        shifts, phases_s = rings.phases(run.demand, horizon_s)
        tried = rings.shifted(rings.project(run.demand, 0.0, horizon_s), shifts)
        overs = rings.overlaps(rest, tried)
        best = int(overs.argmin())
        if over - float(overs[best]) >= REPHASE * rings.BINS:
            load = rest + tried[best]
            yield Binding(run_id=run.run_id, group_id=group.group_id, phase_s=float(phases_s[best]))
