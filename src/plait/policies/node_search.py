"""Search: the best node group and phase for one run, over the facts of all groups.

``GroupTable`` holds the facts as arrays, and keeps up with them (``kept``). Groups without the
memory are left out, the others ranked by a lower bound of the overlap that their mean load gives,
and of the first ``LOOKS`` the bins are looked at until none of the rest can be better.

Invariant: what ``find`` answers fits in memory and delays nobody by more than its slack.
Left to others: who is searched for, in which order, and what is kept for whom (``node_groups``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plait.core.ids import RunId
from plait.core.placement import Binding, Demand, GroupFacts, GroupId, PlacedRun, WaitingRun
from plait.policies import node_index, rings, waits
from plait.policies.node_index import Entry
from plait.policies.node_ring import GroupRing
from plait.policies.node_rooms import Bound, Rooms
from plait.policies.rings import Floats

LOOKS = 16
"""Groups whose bins are looked at per run, best mean first: enough to find one whose gaps match,
few enough for a decision over 10,000 devices to stay within its time."""
JITTER = 0.05
"""Of a step, each way: what a phase keeps free of others where it can. Steps of one run repeat so
closely that their curves almost overlap (JigsawRL Fig. 6)."""
ROUNDING = 1e-6
"""Overlaps that differ by less are equal, in bins."""
KINDS = 20_000
"""Runs whose kind is remembered before all are forgotten: ten times those of a large cluster."""
RINGS = 10_000
"""Groups' rings of which something is remembered before all is forgotten: some for each group of a
large cluster."""
OFFERS = 1_000_000
"""Of a demand and a ring, remembered before all is forgotten: some 200 MB."""
SEAM = 0.5
"""Bins per step that two runs have in common when one follows the other: their ends share bins."""
NOBODY = GroupRing((), 0.0)
"""Of a group that has not been looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a run can go."""

    i: int
    """Place of the group in the view."""
    phase_s: float
    mean: float
    """Of the run's demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why it can go nowhere."""

    reason: str
    detail: str
    lasting: bool = True
    """Nothing changes it but a group that becomes freer."""


class GroupTable:
    """The groups as they are at one decision after the other, and what has been bound to them."""

    def __init__(self) -> None:
        self.groups: Sequence[GroupFacts] = ()
        self.entries: dict[str, Entry] = {}
        self.horizon_s = 0.0
        self.place: dict[GroupId, int] = {}
        self.fresh: set[int] = set()
        """Groups that have changed since ``rooms`` was asked."""
        self.rooms = Rooms()
        self._added: set[int] = set()
        """Groups to which something was bound since the last facts."""
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._kind_of: dict[RunId, tuple[WaitingRun, int]] = {}
        self._rings: list[GroupRing] = []
        """As they are now."""
        self._told: dict[GroupId, GroupRing] = {}
        """As the last facts have them."""
        self._numbering = 0
        self._forget()

    @property
    def runs(self) -> list[Sequence[PlacedRun]]:
        """Of each group."""
        return [ring.runs for ring in self._rings]

    def entry(self, group: GroupFacts, horizon_s: float) -> Entry:
        """Of the group as these facts have it."""
        return self._as_told(group, horizon_s).made()

    def shift(self, group: GroupFacts) -> tuple[Binding, ...]:
        """Better phases for the runs that the facts have on the group."""
        return self._as_told(group, self.horizon_s).shift(group)

    def suspects(self, groups: Sequence[GroupFacts]) -> list[GroupFacts] | None:
        """Groups that may differ from ``entries``; ``None`` where they are not the same groups."""
        if len(groups) != len(self.groups):
            return None
        differ = {i for i, same in enumerate(map(is_, groups, self.groups)) if not same}
        if any(groups[i].group_id != self.groups[i].group_id for i in differ):
            return None
        return [groups[i] for i in sorted(differ | self._added)]

    def follow(
        self,
        groups: Sequence[GroupFacts],
        entries: dict[str, Entry],
        horizon_s: float,
        suspects: Sequence[GroupFacts] | None = None,
    ) -> None:
        """Go on to these groups, of which all but the ``suspects`` are as they were."""
        if len(self._kind_of) > KINDS:
            self._kinds, self._kind_of = {}, {}
        if len(self._numbers) > RINGS or max(len(self._overlaps), len(self._bearable)) > OFFERS:
            self._forget()
        if suspects is None or horizon_s != self.horizon_s:
            self._begin(groups)
            places: Sequence[int] = range(len(groups))
        else:
            places = [self.place[group.group_id] for group in suspects]
        self.groups, self.entries, self.horizon_s, self._added = groups, entries, horizon_s, set()
        for i in places:
            facts = groups[i]
            self._rings[i] = self._as_told(facts, horizon_s)
            self.fresh.add(i)
            self._n[i], self._device[i] = facts.n_devices, facts.device_bytes
            self._host[i] = facts.host_bytes
            self._sum_up(i, entries[facts.group_id])

    def _begin(self, groups: Sequence[GroupFacts]) -> None:
        n = len(groups)
        self._rings = [NOBODY] * n
        self._forget()
        self.place = {group.group_id: i for i, group in enumerate(groups)}
        self._told = {gid: ring for gid, ring in self._told.items() if gid in self.place}
        self._n = np.zeros(n, dtype=np.int64)
        self._device, self._host = np.zeros(n), np.zeros(n)
        self._taken, self._mean = np.zeros(n), np.zeros(n)
        self._cold = np.zeros(n, dtype=np.bool_)

    def _sum_up(self, i: int, entry: Entry) -> None:
        self._mean[i], self._cold[i] = entry["mean"], entry["cold"]
        self._taken[i] = entry["host"]

    def kind(self, run: WaitingRun) -> int:
        """A number, the same for runs that fit in the same places."""
        known = self._kind_of.get(run.run_id)
        if known is None or known[0] is not run:
            kind = (run.n_devices, run.device_bytes, run.host_bytes, run.slack_s, run.demand)
            number = self._kinds.setdefault(kind, len(self._kinds))
            known = self._kind_of[run.run_id] = (run, number)
        return known[1]

    def large_enough(self, run: WaitingRun) -> NDArray[np.bool_]:
        """Groups that could hold the run if they were empty."""
        large: NDArray[np.bool_] = (
            (self._n >= run.n_devices)
            & (self._device >= run.device_bytes)
            & (self._host >= run.host_bytes)
        )
        return large

    def room_at(self, run: WaitingRun, bound: Bound, now: float) -> Floats:
        """When each group is expected to have room for the run."""
        self.rooms.follow(self.fresh, self.runs, bound)
        self.fresh = set()
        return self.rooms.at(run, self._host, now)

    def find(
        self, run: WaitingRun, prefer: Literal["spread", "pack"], closed: int | None
    ) -> Spot | Refusal:
        """The best spot, but for the group ``closed``."""
        fits = self.large_enough(run)
        if not fits.any():
            detail = (
                f"no group has {run.n_devices} devices with {_gb(run.device_bytes)} each and "
                f"{_gb(run.host_bytes)} of host memory, even when empty"
            )
            return Refusal(reason=waits.NEVER_FITS, detail=detail)
        fits &= self._host - self._taken >= run.host_bytes
        if not fits.any():
            detail = f"needs {_gb(run.host_bytes)} of host memory, and no group has it free"
            return Refusal(reason=waits.HOST_MEMORY, detail=detail)
        fits &= ~self._cold
        if run.demand is None:
            empty = fits & (self._mean < ROUNDING)
            fits = empty if empty.any() else fits
        if not fits.any():
            detail = "all groups with room run something whose demand is not known yet"
            return Refusal(reason=waits.PROFILING, detail=detail)
        kept = closed is not None and bool(fits[closed])
        if kept:
            fits[closed] = False
        spot = self._best(run, prefer, np.flatnonzero(fits))
        if spot is not None:
            return spot
        if kept and self._best(run, prefer, np.array([closed])) is not None:
            return Refusal(reason=waits.RESERVED, detail="", lasting=False)
        detail = (
            "on every group with room a step, its own or another's, would be delayed by more than "
            f"its slack (its own is {run.slack_s:.0f} s)"
        )
        return Refusal(reason=waits.SLACK, detail=detail)

    def add(self, run: WaitingRun, spot: Spot) -> None:
        """Bind the run there."""
        placed = PlacedRun(
            run_id=run.run_id,
            demand=run.demand,
            phase_s=spot.phase_s,
            host_bytes=run.host_bytes,
            slack_s=run.slack_s,
        )
        self._added.add(spot.i)
        self.fresh.add(spot.i)
        self._enter(spot.i, self._rings[spot.i].joined(placed))

    def _best(
        self, run: WaitingRun, prefer: Literal["spread", "pack"], where: NDArray[np.intp]
    ) -> Spot | None:
        base = rings.project(run.demand, 0.0, self.horizon_s)
        shifts, phases_s = rings.phases(run.demand, self.horizon_s)
        mean = float(base.mean())
        lower = np.maximum(0.0, self._mean[where] + mean - rings.CAPACITY) * rings.BINS
        lower[lower < ROUNDING] = 0.0
        load = self._mean[where] if prefer == "spread" else -self._mean[where]
        ranked = np.lexsort((load, self._n[where], lower))[:LOOKS]
        seam = SEAM * (1 if run.demand is None else rings.steps(run.demand, self.horizon_s))
        found: list[tuple[float, int, int]] = []
        least = np.inf
        for place, k in enumerate(ranked):
            if least <= lower[k] + ROUNDING:
                break
            over = self._least(run.demand, int(where[k]))
            over = 0.0 if over < seam else over
            least = min(least, over)
            found.append((over, place, int(where[k])))
        for _, _, i in sorted(found):
            at = self._phase(run, i)
            if self._is_bearable(run, i, at, base, shifts):
                return Spot(i=i, phase_s=float(phases_s[at]), mean=mean)
        return None

    def _least(self, demand: Demand | None, i: int) -> float:
        """Overlap at the best phase; remembered, as a run that waits for another reason is offered
        the same beside the same others at each decision."""
        load, key = self._load(i), (self._ring(i), demand)
        known = self._overlaps.get(key)
        if known is None:
            overs = rings.overlaps(load, rings.trials(demand, self.horizon_s))
            known = self._overlaps[key] = float(overs.min())
        return known

    def _phase(self, run: WaitingRun, i: int) -> int:
        """Of the phases with the least overlap, the one that keeps most room for jitter; remembered
        like that overlap."""
        load, key = self._load(i), (self._ring(i), run.demand)
        known = self._phases.get(key)
        if known is None:
            known = self._phases[key] = self._best_phase(run, i, load)
        return known

    def _is_bearable(
        self, run: WaitingRun, i: int, at: int, base: Floats, shifts: NDArray[np.intp]
    ) -> bool:
        """``_within_slack`` at one of the phases; remembered like the overlap."""
        slack_s = 0.0 if run.demand is None else run.slack_s
        key = (self._ring(i), run.demand, slack_s, at)
        known = self._bearable.get(key)
        if known is None:
            known = self._within_slack(run, i, np.roll(base, shifts[at]))
            self._bearable[key] = known
        return known

    def _ring(self, i: int) -> int:
        """A number, the same whenever the same runs are on a group."""
        ring = self._rings[i]
        if ring.number is None or ring.number[0] != self._numbering:
            number = self._numbers.setdefault(tuple(ring.runs), len(self._numbers))
            ring.number = (self._numbering, number)
        return ring.number[1]

    def _forget(self) -> None:
        """All that was remembered of rings."""
        self._numbering += 1
        self._numbers: dict[tuple[PlacedRun, ...], int] = {}
        self._overlaps: dict[tuple[int, Demand | None], float] = {}
        """At the best phase."""
        self._phases: dict[tuple[int, Demand | None], int] = {}
        self._bearable: dict[tuple[int, Demand | None, float, int], bool] = {}

    def _best_phase(self, run: WaitingRun, i: int, load: Floats) -> int:
        traces = rings.trials(run.demand, self.horizon_s)
        over = rings.overlaps(load, traces)
        equal = np.flatnonzero(over <= over.min() + ROUNDING)
        if len(equal) == 1 or run.demand is None or not self._rings[i].runs:
            return int(equal[0])
        step = rings.BINS / rings.steps(run.demand, self.horizon_s)
        wide = rings.widened(load, max(1, round(JITTER * step)))
        return int(equal[int(rings.overlaps(wide, traces[equal]).argmin())])

    def _within_slack(self, run: WaitingRun, i: int, trace: Floats) -> bool:
        """No phase is more exact than the distance of two, so less than that is no delay."""
        over = np.maximum(self._load(i) + trace - rings.CAPACITY, 0.0)
        if over.sum() <= ROUNDING:
            return True
        traces: list[tuple[Demand | None, Floats, float]] = []
        if run.demand is not None:
            traces.append((run.demand, trace, run.slack_s))
        for r in self._rings[i].runs:
            there = rings.project(r.demand, r.phase_s, self.horizon_s)
            traces.append((r.demand, there, r.slack_s))
        for demand, busy, slack_s in traces:
            unseen_s = 0.0 if demand is None else demand.period_s / rings.PHASES
            if rings.delay_s(over, busy, demand, self.horizon_s) > slack_s + unseen_s:
                return False
        return True

    def _load(self, i: int) -> Floats:
        """The ring of a group; made anew if its traces have drifted and its periods have not."""
        ring = self._rings[i]
        if ring.load is None:
            entry = self.entries[self.groups[i].group_id]
            if ring.entry is None and entry["print"] != node_index.fingerprint(ring.runs):
                self._enter(i, ring)
                entry = ring.made()
            ring.load = np.array(entry["load"], dtype=np.float64)
        return ring.load

    def _as_told(self, group: GroupFacts, horizon_s: float) -> GroupRing:
        """Of the facts; the same while they are."""
        ring = self._told.get(group.group_id)
        if ring is None or ring.runs is not group.runs or ring.horizon_s != horizon_s:
            ring = self._told[group.group_id] = GroupRing(group.runs, horizon_s)
        return ring

    def _enter(self, i: int, ring: GroupRing) -> None:
        self._rings[i] = ring
        entry = self.entries[self.groups[i].group_id] = ring.made()
        self._sum_up(i, entry)


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
