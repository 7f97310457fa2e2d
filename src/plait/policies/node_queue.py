"""Queue: in which order runs are given a node group, and who may overtake whom.

The order is: the overdue one · higher priority · less of the cluster per weight (the tenant's) ·
longer wait · submission. A run that later ones were placed before ``AGE_BINDS`` times is overdue;
of those the longest waiting goes first, one such turn in ``AGE_BINDS`` placements.

Invariants: the first of the order that found no place is the *head*; a group is kept for it
(``node_groups``), so it is delayed by those who overtake it, and never for ever.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from plait.core.placement import WaitingRun
from plait.policies.fairness import AGE_GRANTS, MIN_WEIGHT

AGE_BINDS = AGE_GRANTS
"""Overtakings until a run is overdue: the same bound as in every other queue."""

NONE = (0, 0.0)
"""Of a tenant that has nothing bound."""

Places = dict[str, dict[str, Any]]
"""By run that waits. ``over``: how often it was overtaken; ``tried``: the epoch in which it last
found no place; ``why``: reason and detail of that."""


def enter(old: Mapping[str, dict[str, Any]], waiting: Sequence[WaitingRun]) -> Places:
    """Who waits now; who does not is forgotten."""
    return {r.run_id: old.get(r.run_id) or {"over": 0, "tried": -1} for r in waiting}


def order(
    places: Places,
    waiting: Sequence[WaitingRun],
    tenants: Mapping[str, Sequence[float]],
    since_overdue: int,
    eligible: Callable[[WaitingRun], bool],
) -> tuple[list[WaitingRun], WaitingRun | None]:
    """The queue, and the overdue run at its head, if one is. ``tenants``: how many runs each has
    bound, and how many devices they take on average;
    ``eligible``: its turn would not be lost on it."""
    queue = sorted(
        waiting,
        key=lambda r: (
            -r.priority,
            tenants.get(r.tenant_id, NONE)[1] / max(r.weight, MIN_WEIGHT),
            r.since_s,
            r.order,
        ),
    )
    if since_overdue < AGE_BINDS:
        return queue, None
    due = sorted(
        (r for r in queue if places[r.run_id]["over"] >= AGE_BINDS),
        key=lambda r: (r.since_s, r.order),
    )
    first = next((r for r in due if eligible(r)), None)
    if first is None:
        return queue, None
    return [first, *(r for r in queue if r is not first)], first


def settle(places: Places, waiting: Sequence[WaitingRun], bound: Collection[WaitingRun]) -> Places:
    """Who still waits, told how many that came later have been placed."""
    latest = sorted(run.order for run in bound)
    gone = {run.run_id for run in bound}
    left: Places = {}
    for run in waiting:
        if run.run_id in gone:
            continue
        place = places[run.run_id]
        by = len(latest) - bisect_right(latest, run.order)
        left[run.run_id] = {**place, "over": place["over"] + by} if by else place
    return left
