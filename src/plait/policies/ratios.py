"""Ratios: the response ratios of a trainer's heads, kept as arrays from one decision to the next.

All ratios change with the time, so each decision computes them anew, but only from numbers that are
there already; sorting is for those who look at the whole order. Invariant: the order is that of
finishing first, then ratio, then the longer wait, then submission.

Left to others: which heads there are (``heads``), who goes along (``hrrn``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

COLUMNS = [
    ("weight", np.float64),
    ("since_s", np.float64),
    ("service_s", np.float64),
    ("order", np.int64),
    ("finishes", np.bool_),
    ("waits", np.bool_),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The heads and their ratios at one moment."""

    items: Sequence[WorkItem | None]
    rows: NDArray[np.void]
    ratio: NDArray[np.float64]
    """Of who does not wait: below 0."""

    def first(self) -> WorkItem | None:
        """The first of the order."""
        ratio, rows = self.ratio, self.rows
        finishing = np.flatnonzero(rows["finishes"])
        among = finishing if len(finishing) else np.flatnonzero(rows["waits"])
        if len(among) == 0:
            return None
        best = among[ratio[among] == ratio[among].max()]
        if len(best) > 1:
            best = best[np.lexsort((rows["order"][best], rows["since_s"][best]))]
        return self.items[int(best[0])]

    def queue(self) -> list[WorkItem]:
        """All of them in order."""
        rows = self.rows
        order = np.lexsort((rows["order"], rows["since_s"], -self.ratio, ~rows["finishes"]))
        ranked = (self.items[i] for i in order.tolist())
        return [item for item in ranked if item is not None]


class Ratios:
    """A row for each head, and free ones."""

    def __init__(self, *, switch_aware: bool) -> None:
        self.heads = Heads()
        self.switch_aware = switch_aware
        self._rows: NDArray[np.void] = np.zeros(0, dtype=COLUMNS)
        self._items: list[WorkItem | None] = []
        self._row_of: dict[RunId, int] = {}
        self._free: list[int] = []

    def follow(self, view: DispatchView) -> None:
        """Go on to ``view``."""
        for run_id in self.heads.follow(view):
            item = self.heads.of.get(run_id)
            if item is not None:
                self._enter(self.heads.runs[run_id], item)
            elif (row := self._row_of.pop(run_id, None)) is not None:
                self._items[row], self._rows[row] = None, 0
                self._free.append(row)

    def at(self, now: float) -> Ranking:
        """Ratios at ``now``; unchanged by what follows."""
        rows = self._rows.copy()
        waited_s = np.maximum(0.0, now - rows["since_s"])
        ratio = np.full(len(rows), -1.0)
        np.divide(rows["weight"] * waited_s, rows["service_s"], out=ratio, where=rows["waits"])
        return Ranking(items=self._items.copy(), rows=rows, ratio=ratio)

    def _enter(self, run: RunView, item: WorkItem) -> None:
        row = self._row_of.get(run.run_id)
        if row is None:
            if not self._free:
                self._grow()
            row = self._row_of[run.run_id] = self._free.pop()
        level = max(-MOST_LEVELS, min(MOST_LEVELS, run.priority))
        switches = self.switch_aware and run.run_id not in self.heads.resident
        self._items[row] = item
        self._rows[row] = (
            max(run.weight, MIN_WEIGHT) * PER_PRIORITY**level,
            item.waiting_since_s,
            service_s(item, item.switch_s if switches else 0.0),
            run.order,
            item.finishes,
            True,
        )

    def _grow(self) -> None:
        n = len(self._rows)
        more = max(16, n)
        self._rows = np.concatenate([self._rows, np.zeros(more, dtype=COLUMNS)])
        self._items += [None] * more
        self._free += range(n + more - 1, n - 1, -1)


def service_s(item: WorkItem, switch_s: float) -> float:
    """S: the operation and the switch before it."""
    return max(LEAST_S, item.est_s + switch_s)
