"""Ratios: the response ratios of a trainer's heads, kept as numbers from one decision to the next.

All ratios change with the time, so each decision computes them anew, but only from numbers that are
there already; sorting is for those who look at the whole order. Invariant: the order is that of
finishing first, then ratio, then the longer wait, then submission.

Left to others: which heads there are (``heads``), who goes along (``hrrn``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

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

Row = tuple[float, float, float, int, WorkItem]
"""Weight, since when it waits, service time, submission; and the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The heads at one moment."""

    rows: Sequence[Row]
    finishing: Sequence[Row]
    now: float

    def first(self) -> WorkItem | None:
        """The first of the order."""
        now, among = self.now, self.finishing or self.rows
        if not among:
            return None
        ratios = [weight * (now - since_s) / s for weight, since_s, s, _, _ in among]
        most = max(ratios)
        best = [row for row, ratio in zip(among, ratios, strict=True) if ratio == most]
        # Who is not waiting yet has a ratio of 0.
        return min(best if most > 0.0 else among, key=lambda row: row[1:4:2])[4]

    def queue(self) -> list[WorkItem]:
        """All of them in order."""
        return [row[4] for row in sorted(self.rows, key=self._place)]

    def _place(self, row: Row) -> tuple[bool, float, float, int]:
        weight, since_s, service_s, order, item = row
        ratio = weight * max(0.0, self.now - since_s) / service_s
        return (not item.finishes, -ratio, since_s, order)


class Ratios:
    """A row for each head, in no order."""

    def __init__(self, *, switch_aware: bool) -> None:
        self.heads, self.switch_aware = Heads(), switch_aware
        self._rows: list[Row] = []
        self._row_of: dict[RunId, int] = {}

    def follow(self, view: DispatchView) -> None:
        """Go on to ``view``."""
        for run_id in self.heads.follow(view):
            item = self.heads.of.get(run_id)
            if item is None:
                self._leave(run_id)
                continue
            row = self._row(self.heads.runs[run_id], item)
            at = self._row_of.setdefault(run_id, len(self._rows))
            self._rows[at : at + 1] = [row]

    def at(self, now: float) -> Ranking:
        """Ratios at ``now``; unchanged by what follows."""
        finishing = [self._rows[self._row_of[run_id]] for run_id in self.heads.finishing]
        return Ranking(rows=self._rows.copy(), finishing=finishing, now=now)

    def _row(self, run: RunView, item: WorkItem) -> Row:
        level = max(-MOST_LEVELS, min(MOST_LEVELS, run.priority))
        weight = max(run.weight, MIN_WEIGHT) * PER_PRIORITY**level
        switches = self.switch_aware and run.run_id not in self.heads.resident
        service_s = max(LEAST_S, item.est_s + (item.switch_s if switches else 0.0))
        return (weight, item.waiting_since_s, service_s, run.order, item)

    def _leave(self, run_id: RunId) -> None:
        """The last row takes its place."""
        at = self._row_of.pop(run_id, None)
        if at is None:
            return
        last = self._rows.pop()
        if at < len(self._rows):
            self._rows[at] = last
            self._row_of[last[4].run_id] = at
