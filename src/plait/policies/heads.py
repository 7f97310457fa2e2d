"""Heads: what each run has waiting for a trainer, kept up with the views.

Invariants: an item of a run that is paused or has ended is no head; of a run's several items the
one that has waited longest is. Views whose unchanged parts are the same objects cost what has
changed and a comparison of identities; any other view gives the same heads.

Left to others: the order of service (``fair_queue``, ``hrrn``).
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from plait.core.ids import RunId
from plait.core.runs import Stage
from plait.core.view import DispatchView, RunView, WorkItem

T = TypeVar("T", RunView, WorkItem)

_matters = attrgetter("stage", "served", "priority", "weight", "order")
"""Of a run, to any order of heads."""

FEW = 16
"""Differences of two views, place by place, up to which nothing is looked for in other places."""


class Heads:
    """Of one view after the other."""

    def __init__(self) -> None:
        self.runs: dict[RunId, RunView] = {}
        """All of the view."""
        self.of: dict[RunId, WorkItem] = {}
        """Heads by run."""
        self.paused: dict[RunId, WorkItem] = {}
        """What waits of runs that are paused."""
        self.finishing: set[RunId] = set()
        """Runs whose head ends an update that has begun."""
        self.resident: frozenset[RunId] = frozenset()
        self._view = DispatchView(items=(), runs=())
        self._item_ids: dict[int, WorkItem] = {}
        self._item_of: dict[RunId, WorkItem] = {}
        self._several = False

    def follow(self, view: DispatchView) -> set[RunId]:
        """Go on to ``view``; the runs of which something may have changed."""
        old, self._view = self._view, view
        touched: set[RunId] = set()
        gone_runs, come_runs = _changed(old.runs, view.runs)
        for run_id in {r.run_id for r in gone_runs} - {r.run_id for r in come_runs}:
            touched.add(run_id)
            self.runs.pop(run_id, None)
        for run in come_runs:
            known, self.runs[run.run_id] = self.runs.get(run.run_id), run
            if known is None or _matters(known) != _matters(run):
                touched.add(run.run_id)
        if view.resident != old.resident:
            now = frozenset(view.resident)
            touched |= now ^ self.resident
            self.resident = now
        if view.items is not old.items:
            touched |= self._follow_items(view.items)
        for run_id in touched:
            self._settle(run_id)
        return touched

    def _follow_items(self, items: Sequence[WorkItem]) -> set[RunId]:
        touched: set[RunId] = set()
        if self._several:
            touched |= self._item_of.keys()
            self._item_of, self._item_ids = {}, {}
        before, now = self._item_ids, _by_id(items)
        come = [now[k] for k in now.keys() - before.keys()]
        gone = {before[k].run_id for k in before.keys() - now.keys()}
        for run_id in gone.difference([item.run_id for item in come]):
            touched.add(run_id)
            self._item_of.pop(run_id, None)
        for item in come:
            if self._item_of.get(item.run_id) != item:
                touched.add(item.run_id)
                self._item_of[item.run_id] = item
        self._item_ids = now
        self._several = len(self._item_of) < len(items)
        if self._several:
            # Which of a run's items is its head depends on all of them.
            touched |= self._item_of.keys()
            self._item_of = {}
            for item in items:
                head = self._item_of.get(item.run_id)
                if head is None or item.waiting_since_s < head.waiting_since_s:
                    self._item_of[item.run_id] = item
        return touched

    def _settle(self, run_id: RunId) -> None:
        """Where the run's item belongs."""
        item = self._item_of.get(run_id)
        self.of.pop(run_id, None)
        self.paused.pop(run_id, None)
        self.finishing.discard(run_id)
        if item is None:
            return
        stage = self.runs[run_id].stage
        if stage is Stage.PAUSED:
            self.paused[run_id] = item
        elif not stage.ended:
            self.of[run_id] = item
            if item.finishes:
                self.finishing.add(run_id)


def _changed(old: Sequence[T], new: Sequence[T]) -> tuple[Iterable[T], Iterable[T]]:
    """What is in ``old`` and no longer in ``new``, and what has come."""
    if old is new:
        return (), ()
    if len(old) == len(new):
        pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not b]
        if len(pairs) <= FEW:
            return [a for a, _ in pairs], [b for _, b in pairs]
    before, now = _by_id(old), _by_id(new)
    gone = [before[k] for k in before.keys() - now.keys()]
    return gone, [now[k] for k in now.keys() - before.keys()]


def _by_id(values: Sequence[T]) -> dict[int, T]:
    return dict(zip(map(id, values), values, strict=True))
