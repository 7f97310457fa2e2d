"""Index: what is known of every node group between two placements, kept up with the facts.

An entry per group: who is on it and where in the cycle, the sum of their demand in each bin of the
ring, its mean, and the host memory that they take. The mean is the summary by which groups are
pruned before a bin is looked at. Entries are JSON; one whose runs have not changed is taken over as
it is, so a decision costs what has changed.

Left to others: choosing (``node_groups``), projecting (``rings``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.core.errors import ConfigError
from plait.core.placement import Demand, GroupFacts, PlacedRun, PlacementView
from plait.policies import rings

Entry = dict[str, Any]
"""``key``: ``[run, phase_s, period_s]`` of each run; ``load``: B floats; ``mean``; ``host``: bytes;
``cold``: one of them has no demand yet; ``print``: a fingerprint of all traces."""

FREED = 0.01
"""By so much a group's mean load must fall before runs that found no place are looked at again:
below it there is only noise in the profiles."""


def key(runs: Sequence[PlacedRun]) -> list[list[Any]]:
    """Who is there and where, to see a change by."""
    return [[r.run_id, r.phase_s, 0.0 if r.demand is None else r.demand.period_s] for r in runs]


def fingerprint(runs: Sequence[PlacedRun]) -> int:
    """Of all traces, to see a drift by that leaves the periods alone."""
    return hash(tuple(() if r.demand is None else r.demand.bins for r in runs))


def entry(runs: Sequence[PlacedRun], horizon_s: float, before: Entry | None = None) -> Entry:
    """The entry of a group with these runs: from scratch, or from that ``before`` the last came."""
    sums = rings.nothing() if before is None else np.array(before["load"], dtype=np.float64)
    fresh = runs if before is None else runs[-1:]
    load = sum((rings.project(r.demand, r.phase_s, horizon_s) for r in fresh), sums)
    return {
        "key": key(runs),
        "load": load.tolist(),
        "mean": float(load.mean()),
        "host": sum(r.host_bytes for r in runs),
        "cold": any(r.demand is None for r in runs),
        "print": fingerprint(runs),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """All groups as they are now."""

    horizon_s: float
    entries: dict[str, Entry]
    changed: tuple[GroupFacts, ...]
    """Those that have changed by themselves: a run has left, a demand has drifted."""
    left: tuple[str, ...]
    """Runs that are not where they were, in the order of their groups: what a tenant has is a sum
    of floats, and the order of a set differs from process to process."""
    freed: bool
    """Somebody who found no place before may find one now."""


def anew(group: GroupFacts, horizon_s: float) -> Entry:
    """The entry of a group, from scratch."""
    return entry(group.runs, horizon_s)


def refresh(
    state: Mapping[str, Any],
    view: PlacementView,
    suspects: Sequence[GroupFacts] | None = None,
    make: Callable[[GroupFacts, float], Entry] = anew,
) -> Index:
    """The index that ``state`` holds (``groups``, ``horizon_s``), brought up to the facts.
    ``suspects``: groups that may differ from it, where the same groups were there before; all by
    default. ``make``: a group's entry, as ``anew`` makes it."""
    old: dict[str, Entry] = state.get("groups", {})
    known_s = float(state.get("horizon_s", 0.0))
    among = view.groups if suspects is None else suspects
    changed = tuple(g for g in among if not _same(old.get(g.group_id), g.runs))
    demands = [r.demand for r in view.waiting] + [r.demand for g in changed for r in g.runs]
    longest_s = max((d.period_s for d in demands if d is not None), default=0.0)
    horizon_s = max(known_s, rings.horizon(longest_s))
    stale = changed if horizon_s == known_s else view.groups
    made: dict[str, Entry] = {group.group_id: make(group, horizon_s) for group in stale}
    entries: dict[str, Entry]
    if suspects is None:
        entries = {g.group_id: made.get(g.group_id) or old[g.group_id] for g in view.groups}
        gone = [group_id for group_id in old if group_id not in entries]
    else:
        entries, gone = old | made, []
    before = {group_id: old[group_id] for group_id in (*made, *gone) if group_id in old}
    there = {run.run_id for group in stale for run in group.runs}
    return Index(
        horizon_s=horizon_s,
        entries=entries,
        changed=changed,
        left=tuple(r for known in before.values() for r, *_ in known["key"] if r not in there),
        freed=any(_freed(before.get(group_id), now) for group_id, now in made.items()),
    )


def _same(known: Entry | None, runs: Sequence[PlacedRun]) -> bool:
    """Compared in place: lists made for it would set off the garbage collector."""
    if known is None or len(known["key"]) != len(runs):
        return False
    for (run_id, phase_s, period_s), run in zip(known["key"], runs, strict=True):
        demand = run.demand
        if (
            run_id != run.run_id
            or phase_s != run.phase_s
            or period_s != (0.0 if demand is None else demand.period_s)
        ):
            return False
    return True


def check(demand: Demand | None, run_id: str) -> None:
    """ConfigError if a trace is not one."""
    if demand is None:
        return
    if not (demand.period_s > 0.0 and demand.period_s < float("inf")):
        raise ConfigError(f"run {run_id}: a period of {demand.period_s} s; it must be positive")
    if not demand.bins or not all(0.0 <= share <= 1.0 for share in demand.bins):
        raise ConfigError(f"run {run_id}: a demand is one or more shares in 0 … 1: profile it anew")


def _freed(before: Entry | None, after: Entry) -> bool:
    if before is None:
        return True
    phases = {run_id: phase_s for run_id, phase_s, _ in before["key"]}
    return bool(
        after["mean"] < before["mean"] - FREED
        or after["host"] < before["host"]
        or (before["cold"] and not after["cold"])
        or any(phases.get(run_id, phase_s) != phase_s for run_id, phase_s, _ in after["key"])
    )
