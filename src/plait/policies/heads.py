"""Heads: what each run has waiting for a trainer, kept up with the views.

Invariants: an item of a run that is paused or has ended is no head; of a run's several items the
one that has waited longest is. Views whose unchanged parts are the same objects cost what has
changed and a comparison of identities; any other view gives the same heads.

Left to others: the order of service (``fair_queue``, ``hrrn``).
"""

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter, is_, is_not
from typing import TypeVar

from plait.core.ids import RunId
from plait.core.runs import Stage
from plait.core.view import DispatchView, RunView, WorkItem

T = TypeVar("T", RunView, WorkItem)

_matters = attrgetter("stage", "served", "priority", "weight", "order")
"""Of a run, to any order of heads."""

FEW = 16
"""Places in a row in which two views may differ, and still be compared place by place."""
STRIDE = 64
"""Places that are compared at once."""


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
        self._item_of: dict[RunId, WorkItem] = {}
        self._several = False

    def follow(self, view: DispatchView) -> set[RunId]:
        """Go on to ``view``; the runs of which something may have changed."""
        old, self._view = self._view, view
        touched: set[RunId] = set()
        gone_runs, come_runs = changed(old.runs, view.runs)
        for run_id in {r.run_id for r in gone_runs} - {r.run_id for r in come_runs}:
            touched.add(run_id)
            self.runs.pop(run_id, None)
        for run in come_runs:
            known, self.runs[run.run_id] = self.runs.get(run.run_id), run
            if known is run:
                continue
            if known is None or _matters(known) != _matters(run):
                touched.add(run.run_id)
        if view.resident != old.resident:
            now = frozenset(view.resident)
            touched |= now ^ self.resident
            self.resident = now
        touched |= self._follow_items(old.items, view.items)
        for run_id in touched:
            if run_id in self._item_of or run_id in self.of or run_id in self.paused:
                self._settle(run_id)
        return touched

    def _follow_items(self, before: Sequence[WorkItem], items: Sequence[WorkItem]) -> set[RunId]:
        touched: set[RunId] = set()
        if self._several:
            touched |= self._item_of.keys()
            self._item_of, before = {}, ()
        gone_items, come = changed(before, items)
        gone = {item.run_id for item in gone_items}
        for run_id in gone.difference([item.run_id for item in come]):
            touched.add(run_id)
            self._item_of.pop(run_id, None)
        for item in come:
            known = self._item_of.get(item.run_id)
            if known is not item and known != item:
                touched.add(item.run_id)
                self._item_of[item.run_id] = item
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


def changed(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """What is in ``old`` and no longer in ``new``, and what has come: found quickly where few have,
    and the others are the same objects in the same order. Elsewhere one may be in both."""
    if len(old) == len(new):
        differ = list(compress(range(len(old)), map(is_not, old, new)))
        if all(old[k].run_id == new[k].run_id for k in differ):
            return [old[k] for k in differ], [new[k] for k in differ]
    gone: list[T] = []
    come: list[T] = []
    i = j = apart = 0
    while i < len(old) and j < len(new) and apart <= FEW:
        if old[i] is new[j]:
            n = _alike(old, new, i, j)
            i, j, apart = i + n, j + n, 0
            continue
        if old[i].run_id == new[j].run_id:
            gone.append(old[i])
            come.append(new[j])
            i, j = i + 1, j + 1
            continue
        apart += 1
        if n := _found(new[j], old, i):
            gone += old[i : i + n]
            i += n
        elif n := _found(old[i], new, j):
            come += new[j : j + n]
            j += n
        else:
            gone.append(old[i])
            come.append(new[j])
            i, j = i + 1, j + 1
    gone += old[i:]
    come += new[j:]
    return gone, come


def _alike(old: Sequence[T], new: Sequence[T], i: int, j: int) -> int:
    """How many from there on are the same objects."""
    n, most = 0, min(len(old) - i, len(new) - j)
    while n < most:
        a, b = old[i + n : i + n + STRIDE], new[j + n : j + n + STRIDE]
        if len(a) == len(b) and all(map(is_, a, b)):
            n += STRIDE
            continue
        pairs = enumerate(zip(a, b, strict=False))
        return n + next((k for k, (x, y) in pairs if x is not y), most - n)
    return most


def _found(value: T, values: Sequence[T], i: int) -> int:
    """How far behind ``i`` it is, if not far."""
    return next((n for n, other in enumerate(values[i : i + FEW]) if other is value), 0)
