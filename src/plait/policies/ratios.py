"""Ratios: the response ratios of a trainer's heads, kept in bins from one decision to the next.

All ratios change with the time, P - 1 = f · W with f = w / S, and of those with about the same f
the one that has waited longest has the highest. So heads lie in bins of f, each in order of
waiting: of a bin only the first few can have the highest ratio. Sorting is for those who look at
the whole order. Invariant: the order is that of finishing first, then ratio, then the longer wait,
then submission.

Left to others: which heads there are (``heads``), who goes along (``hrrn``).
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log2

from plait.core.ids import RunId
from plait.core.view import DispatchView, RunView, WorkItem
from plait.policies.fairness import MIN_WEIGHT
from plait.policies.heads import Heads

LEAST_S = 1e-6
"""Of a service time, so that an operation that costs nothing has a ratio."""
PER_PRIORITY = 2.0
"""A level of priority makes waiting count twice: it shortens a wait, and shuts nobody out."""
MOST_LEVELS = 30
"""Beyond it a level changes nothing, rather than overflow."""

PER_OCTAVE = 32
"""Bins: within one, f differs by less than 2.2 %, so of thousands whose f is about the same only so
many have to be looked at."""
ROUNDING = 1.0 + 1e-9

Row = tuple[float, int, RunId, float, float, WorkItem]
"""Since when it waits, submission, and whose it is; weight, service time, and the head."""
Place = tuple[bool, float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The heads at one moment, and the first of them."""

    rows: Sequence[Row]
    first: WorkItem | None
    now: float

    def queue(self) -> list[WorkItem]:
        """All of them in order."""
        return [row[5] for row in sorted(self.rows, key=lambda row: place(row, self.now))]


def place(row: Row, now: float) -> Place:
    """In the order, the first the least."""
    since_s, order, _, weight, service_s, item = row
    ratio = weight * max(0.0, now - since_s) / service_s
    return (not item.finishes, -ratio, since_s, order)


class Ratios:
    """The heads, and their bins."""

    def __init__(self, *, switch_aware: bool) -> None:
        self.heads, self.switch_aware = Heads(), switch_aware
        self._rows: dict[RunId, Row] = {}
        self._bins: dict[int, list[Row]] = {}

    def follow(self, view: DispatchView) -> None:
        """Go on to ``view``."""
        for run_id in self.heads.follow(view):
            if (before := self._rows.pop(run_id, None)) is not None:
                self._leave(before)
            if (item := self.heads.of.get(run_id)) is not None:
                row = self._rows[run_id] = self._row(self.heads.runs[run_id], item)
                insort(self._bins.setdefault(_bin(row), []), row)

    def at(self, now: float) -> Ranking:
        """Ratios at ``now``; unchanged by what follows."""
        return Ranking(rows=list(self._rows.values()), first=self._first(now), now=now)

    def _first(self, now: float) -> WorkItem | None:
        finishing = [self._rows[run_id] for run_id in self.heads.finishing]
        if finishing:
            return min(finishing, key=lambda row: place(row, now))[5]
        # As ``place`` orders them, of whom nobody is finishing; without one made for each.
        best: WorkItem | None = None
        least, first = -1.0, (0.0, 0)
        for number, rows in self._bins.items():
            most = 2.0 ** ((number + 1) / PER_OCTAVE) * ROUNDING
            for row in rows:
                waited_s = now - row[0] if now > row[0] else 0.0
                if most * waited_s < least:
                    break
                ratio = row[3] * waited_s / row[4]
                if ratio > least or (ratio == least and row[:2] < first):
                    best, least, first = row[5], ratio, row[:2]
        return best

    def _row(self, run: RunView, item: WorkItem) -> Row:
        level = max(-MOST_LEVELS, min(MOST_LEVELS, run.priority))
        weight = max(run.weight, MIN_WEIGHT) * PER_PRIORITY**level
        switches = self.switch_aware and run.run_id not in self.heads.resident
        service_s = max(LEAST_S, item.est_s + (item.switch_s if switches else 0.0))
        return (item.waiting_since_s, run.order, run.run_id, weight, service_s, item)

    def _leave(self, row: Row) -> None:
        number = _bin(row)
        rows = self._bins[number]
        del rows[bisect_left(rows, row)]
        if not rows:
            del self._bins[number]


def _bin(row: Row) -> int:
    return floor(log2(row[3] / row[4]) * PER_OCTAVE)
