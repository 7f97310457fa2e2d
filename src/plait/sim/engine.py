"""Rollout engine: one worker's decode batch, its queue, its cache, and samples out with tools.

A sample is queued, joins the batch when its cache fits, decodes a turn, waits for a tool with its
cache held idle, and comes back. A batch that has outgrown the cache gives up idle caches first and
then sends its latest row back to the queue, to be computed again: the row that came first always
goes on, so every sample ends.

Invariants: the batch holds at most ``pool_tokens``; idle caches take only what the batch leaves;
rows join in the order of the queue.
Left to others: which samples come here (``fleet``), how fast the worker goes (``worker``).
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from plait.core.ids import RunId
from plait.core.substages import Kind, Substage
from plait.sim.account import Account
from plait.sim.batch import TAILS, Batch, kind_of
from plait.sim.costs.protocol import Costs
from plait.sim.entrance import HEADROOM_STEPS, Entrance
from plait.sim.idle import IdleCaches
from plait.sim.row import Row
from plait.sim.solo import Remembered, Solo
from plait.sim.worker import Worker

if TYPE_CHECKING:
    from plait.sim.portion import Portion


class Engine:
    """Decodes on one worker. It is an ``Activity`` of it while it has rows."""

    def __init__(
        self,
        *,
        name: str,
        worker: Worker,
        costs: Costs,
        pool_tokens: int,
        exact: bool,
        now: Callable[[], float],
        owner: str = "",
        buckets: bool = False,
        most_rows: int = 0,
    ) -> None:
        """``owner``: the one run that it serves; with none, those that have rows in it."""
        self.name, self.worker, self.costs, self.pool_tokens = name, worker, costs, pool_tokens
        self.owner, self.compute, self.memory = owner, 1.0, 1.0
        self.batch = Batch(costs, exact=exact, buckets=buckets)
        self._entrance = Entrance(most_rows)
        self._account = Account(worker.n_devices)
        self.idle = IdleCaches()
        self.n_preempted = 0
        self.on_change: Callable[[Engine], None] | None = None
        """Called when its kind of rollout has changed, when it has run out of rows, and when rows
        have come while it is held back."""
        self.on_tail: Callable[[], None] | None = None
        """Called when few rows are left, at each halving."""
        self._n_rows = 0
        self._solo: Solo | None = None
        """In the fluid mode, while it has one run's rows that need nobody's attention."""
        self._solo_left_s = 0.0
        self._times = Remembered(costs, pool_tokens)
        self._may_solo = bool(owner) and not exact and not buckets
        self._now, self._buckets = now, buckets
        self._order = 0
        self._counted = 0.0
        self._kind = Kind.DECODE
        self.job = owner
        self.held_back = False
        """Nothing starts here until it is let go (a plan makes it wait)."""
        worker.on_lost.append(self.lost)
        worker.on_back.append(self.release)

    @property
    def left_s(self) -> float:
        return self.batch.left_s if self._solo is None else self._solo_left_s

    @left_s.setter
    def left_s(self, value: float) -> None:
        if self._solo is None:
            self.batch.left_s = value
        else:
            self._solo_left_s = value

    @property
    def kind(self) -> Kind:
        return self._kind

    @property
    def substage(self) -> Substage:
        rows = self.batch.rows if self._solo is None else self._solo.rows
        run = RunId(rows[0].portion.run if rows else self.owner)
        return Substage(
            key=self.name,
            run_id=run,
            worker=self.worker.worker_id,
            kind=self._kind,
            work_s=self.left_s,
            tokens=len(rows),
            context=round(self.batch.context / len(rows)) if self.batch.rows else 0,
            n_samples=len(rows),
        )

    @property
    def worked_s(self) -> float:
        """Of its own time since the beginning, up to the last time its worker was brought up to
        date."""
        return self._account.worked_s + self.batch.done_s

    @property
    def n_waiting(self) -> int:
        """Samples that want to join the batch."""
        return len(self._entrance)

    def waiting(self) -> list[Row]:
        """Those."""
        return self._entrance.rows()

    @property
    def queue(self) -> deque[Row]:
        """Those of them that join in their turn."""
        return self._entrance.queue

    @property
    def load(self) -> int:
        """Samples that are here or are to come back."""
        solo = 0 if self._solo is None else len(self._solo.rows)
        n_rows = len(self.batch.rows) + solo
        return n_rows + len(self._entrance) + len(self.idle)

    def submit(self, rows: list[Row]) -> None:
        """Samples that want to decode here."""
        if self._may_solo:
            if self._solo is None and self._starts_solo(rows):
                return
            self._interrupt()
        if not self.batch.between_steps and self.worker.runs(self.name):
            self._entrance.apart += rows
            return
        self._update(rows)
        if self.held_back and self.on_change is not None:
            self.on_change(self)

    def reached(self) -> None:
        if self._solo is None:
            self._update([])
        else:
            self._end_solo()

    def flops_done(self) -> float:
        total = self.batch.n_tokens
        if self._solo is not None and self._solo.total_s > 0.0:
            total += self._solo.n_tokens * (1.0 - self._solo_left_s / self._solo.total_s)
        n, self._counted = total - self._counted, total
        return self.costs.flops(max(0, round(n)))

    def away(self, row: Row) -> None:
        """A sample waits for a tool; its cache stays while there is room."""
        self.idle.keep(row)
        self._evict()

    def back(self, returned: Sequence[tuple[Row, int]]) -> None:
        """Samples come back with the tokens that their tool returned."""
        for row, n_tokens in returned:
            row.compute = n_tokens if row in self.idle else row.context + n_tokens
            row.context += n_tokens
        self.submit([row for row, _ in returned])

    def lost(self) -> None:
        """Its worker is gone, and all caches with it: what was drawn is kept, to be computed
        again."""
        self._interrupt()
        self.worker.sync()
        ended = self.batch.settle()
        self._charge(len(ended))
        for row in ended:
            self._account.left(row, self._now())
        for row in sorted(self.batch.rows, key=lambda row: -row.order):
            self._remove(row)
            row.compute = row.context
            self.queue.appendleft(row)
        self.idle.forget()
        self._plan()
        self._finish(ended)

    def take(self, portion: "Portion") -> list[Row]:
        """Take out all of a portion's samples that are here, to go on elsewhere or to be dropped;
        those out with a tool are forgotten as far as the cache goes."""
        self._interrupt()
        self._update([])
        self.worker.sync()
        mine = [row for row in self.batch.rows if row.portion is portion]
        for row in mine:
            self._remove(row)
        self.idle.pop_all(portion)
        out = mine + self._entrance.take(portion)
        self._update([])
        return out

    def release(self) -> None:
        """Its rows may start."""
        self._update([])

    def _update(self, rows: list[Row]) -> None:
        self.worker.sync()
        full = self.batch.full
        ended = self.batch.settle()
        self._charge(len(ended))
        self._entrance.come(rows)
        for row in ended:
            self._account.left(row, self._now())
        if full or self.batch.held + len(self.batch.rows) > self.pool_tokens:
            self._make_room()
        self._evict()
        self._admit()
        # Last, since whoever hears of an end may give the engine more to do at once.
        self._plan()
        self._finish(ended)

    def _finish(self, ended: list[Row]) -> None:
        for row in ended:
            row.portion.turn_ended(row)

    def _starts_solo(self, rows: list[Row]) -> bool:
        """Let the rows run to their end in one go, if nothing else is here or comes back."""
        busy = self.batch.rows or self.queue or self.idle or self.worker.lost
        if busy or not rows or any(row.more for row in rows):
            return False
        self._solo = Solo(
            rows,
            self._times,
            pool_tokens=self.pool_tokens,
            headroom=HEADROOM_STEPS,
            most_rows=self._entrance.most_rows,
        )
        self._solo_left_s = self._solo.total_s
        self._kind = kind_of(len(rows))
        self.job = self.owner
        self.worker.start(self)
        return True

    def _end_solo(self) -> None:
        """All its rows have ended."""
        assert self._solo is not None
        rows = self._solo.rows
        self._leave_solo(1.0)
        for row in rows:
            row.portion.turn_ended(row)

    def _interrupt(self) -> None:
        """Somebody else comes, or its rows go: on with those that have not ended, as usual."""
        if self._solo is None:
            return
        self.worker.sync()
        solo, left_s = self._solo, self._solo_left_s
        part = 1.0 - left_s / solo.total_s if solo.total_s > 0.0 else 1.0
        rows = solo.at(solo.total_s - left_s)
        going_on = set(map(id, rows))
        self._leave_solo(part)
        self.queue.extend(rows)
        for row in solo.rows:
            if id(row) not in going_on:
                row.portion.turn_ended(row)
        self._update([])

    def _leave_solo(self, part: float) -> None:
        solo = self._solo
        assert solo is not None
        self.worker.stop(self.name)
        self._solo = None
        self.batch.n_tokens += solo.n_tokens * part
        self.n_preempted += solo.n_preempted
        portion = solo.rows[0].portion
        portion.throttled |= solo.n_preempted > 0
        portion.charge(
            device_s=solo.total_s * part * self.worker.n_devices, held_s=solo.held_s * part
        )

    def _plan(self) -> None:
        batch, running = self.batch, self.worker.runs(self.name)
        batch.plan(self.pool_tokens, every=bool(self.queue))
        if not batch.rows:
            if running:
                self.worker.stop(self.name)
            if self.on_change is not None and running:
                self.on_change(self)
            return
        n = len(batch.rows)
        kind = kind_of(n)
        runs = self.batch.adapters
        job = self.owner or (str(next(iter(runs))) if len(runs) == 1 else "")
        if (kind, job) != (self._kind, self.job) and running:
            self.worker.cut(self.name)
        self.job = job
        changed, self._kind = kind is not self._kind, kind
        if not running:
            self.worker.start(self)
        else:
            self.worker.changed()
        if (changed or not running) and self.on_change is not None:
            self.on_change(self)
        fewer, self._n_rows = n < self._n_rows, n
        if self.on_tail is not None and fewer and n + 1 in TAILS:
            self.on_tail()

    def _admit(self) -> None:
        if not self.queue or self.held_back or self.worker.lost:
            return
        if new := self._entrance.let_in(self.batch, self.pool_tokens):
            now = self._now()
            for row in new:
                self.idle.pop(row)
                self._order += 1
                row.order = self._order
                self._account.joined(row, now)
            self.batch.join(new)
            self._evict()

    def _make_room(self) -> None:
        """The latest rows leave until the batch may go on."""
        batch = self.batch
        while len(batch.rows) > 1:
            n = len(batch.rows)
            if batch.held + n * HEADROOM_STEPS <= self.pool_tokens:
                break
            latest = max(batch.rows, key=lambda row: row.order)
            self._remove(latest)
            latest.compute = latest.context
            latest.portion.throttled = True
            self.queue.appendleft(latest)
            self.n_preempted += 1

    def _evict(self) -> None:
        self.idle.shrink(self.pool_tokens - self.batch.held)

    def _remove(self, row: Row) -> None:
        self.batch.remove(row)
        self._account.left(row, self._now())

    def _charge(self, n_ended: int) -> None:
        """For what has been done since the last time."""
        self._account.charge(self.batch.settled_s, len(self.batch.rows), n_ended)
