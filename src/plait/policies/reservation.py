"""Reservation: the node group that is kept for the run at the head of the placement queue.

EASY backfilling: the head gets the group that is expected to have room for it first; others may
still go there if they are expected to have ended by then. Expectations may be wrong, so a head that
is overdue has its group to itself: it empties, and an empty group takes it.

Left to others: who is the head (``node_queue``), whether a run fits (``node_search``).
"""

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from plait.core.placement import Demand, PlacedRun, WaitingRun
from plait.policies.node_search import GroupTable

Reserved = dict[str, Any]
"""``run``, ``group`` and ``at``: when it is expected to have room, ``None`` if nobody knows."""


def until(run: WaitingRun, now: float) -> float | None:
    """When a run that is bound now is expected to end at the latest, its slack used up in every
    step; ``None`` if nobody knows how long it lasts."""
    if run.expected_s <= 0.0:
        return None
    stretch = 1.0 + (0.0 if run.demand is None else run.slack_s / run.demand.period_s)
    return now + run.expected_s * stretch


def renew(
    old: Reserved | None,
    head: WaitingRun,
    table: GroupTable,
    bound: Mapping[str, Mapping[str, Any]],
    now: float,
) -> Reserved | None:
    """The head's reservation: the one it has, while that may still come true, or else the group
    that is expected to have room first."""
    places = {group.group_id: i for i, group in enumerate(table.groups)}
    large = table.large_enough(head)
    if old is not None and old["run"] == head.run_id and old["group"] in places:
        in_time = old["at"] is None or old["at"] >= now
        if in_time and large[places[old["group"]]]:
            return old
    best: tuple[float, int] | None = None
    for place in np.flatnonzero(large).tolist():
        at = _room_at(head, table, place, bound, now)
        if best is None or (at, place) < best:
            best = (at, place)
    if best is None:
        return None
    at, i = best
    group_id = table.groups[i].group_id
    return {"run": head.run_id, "group": group_id, "at": None if at == inf else at}


def closed(
    reserved: Reserved | None, run: WaitingRun, table: GroupTable, now: float, *, to_all: bool
) -> int | None:
    """The place of the group that ``run`` may not have; ``to_all``: not even for a short while."""
    if reserved is None:
        return None
    end = until(run, now)
    short = end is not None and reserved["at"] is not None and end <= reserved["at"]
    if short and not to_all:
        return None
    ids = (i for i, g in enumerate(table.groups) if g.group_id == reserved["group"])
    return next(ids, None)


def _room_at(
    head: WaitingRun,
    table: GroupTable,
    i: int,
    bound: Mapping[str, Mapping[str, Any]],
    now: float,
) -> float:
    """When the means of demand and memory leave room for the head, as runs end one by one."""
    left = [(_ends(run, bound, now), _mean(run.demand), run.host_bytes) for run in table.runs[i]]
    left.sort(reverse=True)
    room_bytes = table.groups[i].host_bytes - head.host_bytes
    at = now
    while left:
        at = left.pop()[0]
        n_bytes = sum(entry[2] for entry in left)
        load = sum(entry[1] for entry in left) + _mean(head.demand)
        if n_bytes <= room_bytes and load <= 1.0:
            break
    return at


def _ends(run: PlacedRun, bound: Mapping[str, Mapping[str, Any]], now: float) -> float:
    end = bound.get(run.run_id, {}).get("until")
    return inf if end is None else max(now, float(end))


def _mean(demand: Demand | None) -> float:
    return 1.0 if demand is None else sum(demand.bins) / len(demand.bins)
