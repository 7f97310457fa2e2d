"""Backlog: what is queued for one training worker, and what its policy is told of it.

Order within a run is the order of submission. Of each run the first operation is a work item; it is
kept from one decision to the next, and made anew where something that it is made from has changed:
what is queued, the run's facts, or where its state is.

Invariants: ``items`` are at each decision what they would be if all were made anew; none is of a
run that is paused, or of an operation that was given up. Left to others: the order between runs
(the policy), what becomes of an operation that is taken out (``trainer_queue``).
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.errors import PlaitError
from plait.core.ids import OpId, RunId
from plait.core.operations import OptimStep, Result, TrainOp
from plait.core.view import WorkItem
from plait.profiles import timing
from plait.runtime.facts import Roster
from plait.runtime.gradients import Gradient, spoilt
from plait.runtime.resident import Resident


@dataclass(slots=True)
class Pending:
    """An operation that was asked for and has not been answered."""

    op: TrainOp
    future: asyncio.Future[Result]
    since_s: float
    save_to: str | None
    tokens: int
    behind: tuple[Gradient, ...]
    """Gradients without which this is not to be done."""
    rows: int
    """As in ``WorkItem``, if the run's state is on the worker."""
    losses: int = 0

    @property
    def is_dead(self) -> bool:
        """Given up by who asked for it, or without the gradient that it builds on."""
        return self.future.done() or any(g.failed for g in self.behind)

    def answer(self, outcome: Result | PlaitError) -> None:
        """Once; whoever gave it up is told nothing."""
        if self.future.done():
            return
        if isinstance(outcome, PlaitError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Backlog:
    """Operations by run, those of one run in order."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._changed = roster.watch()
        self.resident = Resident(self._changed)
        """Runs whose state is on the worker."""
        self.touched: list[RunId] = []
        """Those with an item of which something has changed, as ``refresh`` last found them."""
        self._queues: dict[RunId, deque[Pending]] = {}
        self._items: dict[RunId, WorkItem | None] = {}
        """In the order of ``_queues``; none of a run that is paused."""
        self._waiting: dict[RunId, asyncio.Future[Result]] = {}
        """Of the first of each."""
        self._unsure: set[RunId] = set()
        """Whose first operation stands behind gradients that have not ended."""
        self._run_of: dict[OpId, RunId] = {}

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._queues

    def append(self, pending: Pending) -> None:
        """Last of its run."""
        self._queue(pending.op.run_id).append(pending)

    def put_back(self, pending: Pending) -> None:
        """First of its run: it was taken and not done."""
        self._queue(pending.op.run_id).appendleft(pending)

    def take(self, op_id: OpId) -> Pending:
        """Take out an operation that ``items`` told of."""
        run_id = self._run_of[op_id]
        pending = self._queues[run_id].popleft()
        self._changed[run_id] = None
        self._waiting.pop(run_id, None)
        if not self._queues[run_id]:
            self._leave(run_id)
        return pending

    def drop(self, run_id: RunId) -> Sequence[Pending]:
        """Take out all that a run has."""
        return self._leave(run_id) if run_id in self._queues else ()

    def refresh(self) -> list[RunId]:
        """Go on to how things are; the runs that have nothing left, as what they had was given up
        or cannot be done."""
        waiting = self._waiting
        if any(map(asyncio.Future.done, waiting.values())):
            self._changed.update((r, None) for r, future in waiting.items() if future.done())
        self._changed.update(dict.fromkeys(self._unsure))
        emptied, self.touched = [], []
        for run_id in [r for r in self._changed if r in self._queues]:
            queue = self._queues[run_id]
            while queue and queue[0].is_dead:
                dead = queue.popleft()
                if (error := spoilt(dead.behind)) is not None:
                    dead.answer(error)
            if queue:
                self._enter(run_id, queue[0])
            else:
                self._leave(run_id)
                emptied.append(run_id)
        self._changed.clear()
        return emptied

    def items(self) -> tuple[WorkItem, ...]:
        """As of the last ``refresh``."""
        return tuple(filter(None, self._items.values()))

    def _queue(self, run_id: RunId) -> deque[Pending]:
        self._changed[run_id] = None
        if run_id not in self._queues:
            self._queues[run_id], self._items[run_id] = deque(), None
        return self._queues[run_id]

    def _enter(self, run_id: RunId, first: Pending) -> None:
        known, item = self._items[run_id], self._item(run_id, first)
        if item != known:
            self._forget(known)
            self._items[run_id] = item
        if item is not None:
            self._run_of[item.op_id] = run_id
            self.touched.append(run_id)
        self._waiting[run_id] = first.future
        self._unsure.discard(run_id)
        if any(g.queued is None or not g.queued.done() for g in first.behind):
            self._unsure.add(run_id)

    def _item(self, run_id: RunId, first: Pending) -> WorkItem | None:
        facts, kind = self._roster[run_id], type(first.op).__name__
        if facts.paused:
            return None
        return WorkItem(
            op_id=first.op.op_id,
            run_id=run_id,
            kind=kind,
            est_s=timing.expected_s(facts.timing, kind, first.tokens),
            tokens=first.tokens,
            waiting_since_s=first.since_s,
            rows=first.rows if run_id in self.resident else 0,
            finishes=isinstance(first.op, OptimStep) and bool(facts.uncommitted),
        )

    def _leave(self, run_id: RunId) -> deque[Pending]:
        self._forget(self._items.pop(run_id))
        self._waiting.pop(run_id, None)
        self._unsure.discard(run_id)
        return self._queues.pop(run_id)

    def _forget(self, item: WorkItem | None) -> None:
        if item is not None:
            del self._run_of[item.op_id]
