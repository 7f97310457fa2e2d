"""Reservation: the node group that is kept for the run at the head of the placement queue.

EASY backfilling: the head gets the group that is expected to have room for it first; others may
still go there if they are expected to have ended by then. Expectations may be wrong, so a head that
is overdue has its group to itself: it empties, and an empty group takes it.

Left to others: who is the head (``node_queue``), whether a run fits (``node_search``).
"""

from math import inf
from typing import Any

import numpy as np

from plait.core.placement import WaitingRun
from plait.policies.node_rooms import Bound
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
    bound: Bound,
    now: float,
) -> Reserved | None:
    """The head's reservation: the one it has, while that may still come true, or else the group
    that is expected to have room first."""
    large = table.large_enough(head)
    if old is not None and old["run"] == head.run_id and old["group"] in table.place:
        in_time = old["at"] is None or old["at"] >= now
        if in_time and large[table.place[old["group"]]]:
            return old
    among = np.flatnonzero(large)
    if len(among) == 0:
        return None
    room_at = table.room_at(head, bound, now)
    i = int(among[room_at[among].argmin()])
    at = float(room_at[i])
    return {"run": head.run_id, "group": table.groups[i].group_id, "at": None if at == inf else at}


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
    return table.place.get(reserved["group"])
