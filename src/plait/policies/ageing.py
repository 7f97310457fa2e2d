"""Ageing: who waits and has been overtaken so often that it is overdue.

Each grant to a priority overtakes all that wait with a lower one. These are counted together, by
priority; an entry of ``fairness`` says at which count its own began (``passed``, at its ``level``),
so a grant costs nothing for those whom it does not make overdue. Overtakings of a single run are
added to its ``over``.

Left to others: who overtakes whom otherwise, and whose turn it is (``fair_queue``).
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from plait.core.ids import RunId
from plait.policies.fairness import AGE_GRANTS, Entry

Place = tuple[float, int, RunId]
"""Since when it waits, submission, and who: the order of the overdue."""


def passed(grants: Mapping[str, int], level: int) -> int:
    """Grants so far to priorities above ``level``; ``grants``: by priority."""
    return sum(n for priority, n in grants.items() if int(priority) > level)


def overtaken(grants: Mapping[str, int], entry: Entry) -> int:
    """How often a run has been overtaken since it began to wait."""
    level = entry.get("level")
    together = 0 if level is None else passed(grants, level) - entry["passed"]
    return int(entry["over"]) + together


def stamped(grants: Mapping[str, int], entry: Entry, level: int, over: int) -> Entry:
    """The entry of a run that has been overtaken ``over`` times, and is of priority ``level``."""
    return {**entry, "over": over, "level": level, "passed": passed(grants, level)}


class Ageing:
    """Who waits, and who of them is overdue."""

    def __init__(self) -> None:
        self._places: dict[RunId, Place] = {}
        self._due: list[Place] = []
        self._soon: dict[int, list[tuple[int, Place]]] = {}
        """By priority a heap: when so many grants have passed, it may be overdue. In it may be a
        run that has left, or one twice."""

    def first(self) -> RunId | None:
        """Of the overdue, the one that has waited longest."""
        return self._due[0][2] if self._due else None

    def enter(self, place: Place, entry: Entry, grants: Mapping[str, int]) -> None:
        """A run waits, or has been overtaken by itself."""
        self._places[place[2]] = place
        if overtaken(grants, entry) >= AGE_GRANTS:
            self._overdue(place)
            return
        soon = self._soon.setdefault(entry["level"], [])
        heappush(soon, (entry["passed"] + AGE_GRANTS - entry["over"], place))
        if len(soon) > 2 * len(self._places) + AGE_GRANTS:
            kept = {p[2]: (at, p) for at, p in sorted(soon, reverse=True) if self._waits(p)}
            soon[:] = kept.values()
            heapify(soon)

    def leave(self, run_id: RunId) -> None:
        """It no longer waits."""
        place = self._places.pop(run_id, None)
        if place is not None and self._is_due(at := bisect_left(self._due, place), place):
            del self._due[at]

    def granted(self, level: int, entries: Mapping[str, Entry], grants: Mapping[str, int]) -> None:
        """``grants`` has one more for priority ``level``."""
        for lower, soon in self._soon.items():
            n = passed(grants, lower) if lower < level else -1
            while soon and soon[0][0] <= n:
                _, place = heappop(soon)
                if not self._waits(place):
                    continue
                if (over := overtaken(grants, entries[place[2]])) >= AGE_GRANTS:
                    self._overdue(place)
                else:
                    heappush(soon, (n + AGE_GRANTS - over, place))

    def _waits(self, place: Place) -> bool:
        return self._places.get(place[2]) == place

    def _overdue(self, place: Place) -> None:
        if not self._is_due(bisect_left(self._due, place), place):
            insort(self._due, place)

    def _is_due(self, at: int, place: Place) -> bool:
        return at < len(self._due) and self._due[at] == place
