"""Index: what is known of every node group between two placements, kept up with the facts.

An entry per group: who is on it and where in the cycle, the sum of their demand in each bin of the
ring, its mean, and the host memory that they take. The mean is the summary by which groups are
pruned before a bin is looked at. Entries are JSON; one whose runs have not changed is taken over as
it is, so a decision costs what has changed.

Left to others: choosing (``node_groups``), projecting (``rings``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from plait.core.errors import ConfigError
from plait.core.placement import Demand, GroupFacts, PlacedRun
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


def entry(runs: Sequence[PlacedRun], horizon_s: float) -> Entry:
    """The entry of a group with these runs, from scratch."""
    load = sum((rings.project(r.demand, r.phase_s, horizon_s) for r in runs), rings.nothing())
    return {
        "key": key(runs),
        "load": load.tolist(),
        "mean": float(load.mean()),
        "host": sum(r.host_bytes for r in runs),
        "cold": any(r.demand is None for r in runs),
        "print": fingerprint(runs),
    }


def refresh(
    old: Mapping[str, Entry], groups: Sequence[GroupFacts], horizon_s: float, *, anew: bool
) -> tuple[dict[str, Entry], list[GroupFacts], bool]:
    """Entries of all groups now; the groups that have changed by themselves (a run has left, a
    demand has drifted); and whether anything has become free. ``anew``: the horizon has changed."""
    new: dict[str, Entry] = {}
    changed: list[GroupFacts] = []
    freed = len(old) != len(groups)
    for group in groups:
        known = old.get(group.group_id)
        if known is not None and not anew and known["key"] == key(group.runs):
            new[group.group_id] = known
            continue
        now = new[group.group_id] = entry(group.runs, horizon_s)
        changed.append(group)
        freed = freed or known is None or _freed(known, now)
    return new, changed, freed


def check(demand: Demand | None, run_id: str) -> None:
    """ConfigError if a trace is not one."""
    if demand is None:
        return
    if not (demand.period_s > 0.0 and demand.period_s < float("inf")):
        raise ConfigError(f"run {run_id}: a period of {demand.period_s} s; it must be positive")
    if not demand.bins or not all(0.0 <= share <= 1.0 for share in demand.bins):
        raise ConfigError(f"run {run_id}: a demand is one or more shares in 0 … 1: profile it anew")


def _freed(before: Entry, after: Entry) -> bool:
    """Whether somebody may find a place now who did not before."""
    phases = {run_id: phase_s for run_id, phase_s, _ in before["key"]}
    return bool(
        after["mean"] < before["mean"] - FREED
        or after["host"] < before["host"]
        or (before["cold"] and not after["cold"])
        or any(phases.get(run_id, phase_s) != phase_s for run_id, phase_s, _ in after["key"])
    )
