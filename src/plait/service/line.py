"""Line: the numbered requests of one model, carried out in order.

A request is durable before it is acknowledged and its answer before it can be seen. Gradients are
asked for without waiting for one another, and the optimizer step behind them; whatever else there
is waits for what came before it. A request that fails uses up its number and touches no other,
with one exception: an optimizer step fails if a gradient does that had not ended when the step
arrived, for its client cannot have meant that.

**Exactly once.** What makes a version (a step, a load) commits with it its number and its answer.
Whenever the line begins, after a crash of whatever kind, the store says which number that was last:
it and those before it have been done; those behind it are done again in order, gradients for their
effect alone where their answers are in the store already.

Nothing here knows what the work is: that is ``carry``'s.
"""

import asyncio
import logging
from collections.abc import Callable

from plait.core.errors import NotDone
from plait.runtime.gradients import not_done
from plait.service.endings import Endings
from plait.service.entry import Entry
from plait.service.hands import Down, Hands
from plait.service.held import Held
from plait.service.intake import AHEAD, Intake
from plait.service.log import Log, Owner
from plait.service.ports import Failed, Outcome, Ready, Waiting
from plait.service.reading import Reading
from plait.service.spoilt import spoilt, unmade
from plait.service.stamps import Stamps
from plait.service.under_way import UnderWay
from plait.service.work import COMMITS, Batch, Codec, Kind, Step, Work

log_ = logging.getLogger(__name__)

IDLE_S = 300.0
"""After so long without a request a model leaves its worker; it is back in the time of a load."""
AGAIN_S = 1.0
"""Before another try where workers are gone, or a limit holds."""


class Line:
    """One model's requests."""

    def __init__(
        self,
        owner: Owner,
        *,
        log: Log,
        codec: Codec,
        hands: Callable[["Line"], Hands],
        clock: Callable[[], float],
        idle_s: float = IDLE_S,
    ) -> None:
        self.owner = owner
        self._log, self._clock, self._idle_s = log, clock, idle_s
        self._stamps = Stamps(log.wall)
        held = Held()
        self._endings = Endings(owner.model_id, log, held, self._stamps)
        self._reading = Reading(owner.model_id, log, codec)
        self._hands = hands(self)
        self.intake = Intake(
            owner,
            log=log,
            reading=self._reading,
            held=held,
            stamps=self._stamps,
            clock=clock,
            on_come=self.wake,
        )
        """What comes goes there straight away."""
        self._changed = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._under_way = UnderWay(AHEAD, on_end=self._changed.set)
        self._lost: str = ""
        """A gradient that was answered could not be made again: the next step must not count."""
        self._hold: Waiting | None = None
        """What all wait for, if anything."""
        self.doom = ""
        """Why nothing more is carried out, if so."""
        self.used_s = clock()
        """When somebody last asked for it."""

    async def outcome(self, seq: int, wait_s: float) -> Outcome | None:
        """What became of a request, waiting for its end up to ``wait_s``; None if there is none."""
        entry = self.intake.entries.get(seq)
        if entry is None:
            past = seq < self.intake.order.next
            return await self._log.answer(self.owner.model_id, seq) if past else None
        if not entry.ended:
            try:
                async with asyncio.timeout(wait_s):
                    await entry.over.wait()
            except TimeoutError:
                return self._waiting()
        if entry.outcome is not None:
            return entry.outcome
        return await self._log.answer(self.owner.model_id, seq)

    def end(self, reason: str) -> None:
        """Nothing more is carried out: what is queued fails with the reason."""
        self.doom = self.doom or reason
        self.wake()

    def wake(self) -> None:
        """See to it that what is queued is carried out."""
        self._changed.set()
        if self._life is None or self._life.done():
            self._life = asyncio.create_task(self._live(), name=f"line-{self.owner.model_id}")

    @property
    def awake(self) -> bool:
        """True while it is at work or waits for some."""
        return self._life is not None and not self._life.done()

    async def stop(self) -> None:
        """Leave everything as it is: the store knows how to go on."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        await self._under_way.drop()
        for entry in self.intake.entries.values():
            if entry.read is not None:
                entry.read.cancel()

    async def _live(self) -> None:
        while True:
            try:
                await self._serve()
            except Down as why:
                self._hold = _held(str(why), position=why.position)
            except Exception as error:  # the recorder of what no request can be blamed for
                log_.exception("line %s", self.owner.model_id)
                self._hold = _held(f"{type(error).__name__}: {error}")
            else:
                return
            finally:
                await self._under_way.drop()
            await asyncio.sleep(AGAIN_S)

    async def _serve(self) -> None:
        """Carry out requests from the last committed one on, until there are none for long."""
        last, told_again = await self._hands.committed()
        self.intake.committed = last
        self._lost = ""
        for entry in [e for e in self.intake.here() if e.seq <= last and not e.ended]:
            if entry.seq == last and told_again is not None:
                body = told_again(await self._reading.read(entry))
                await self._end(entry, Ready(kind=entry.kind, body=body))
            else:  # it ended before that was committed, or was nothing that can be ended so
                await self._end(entry, Failed(error="its answer was lost", category="server"))
        # Asked anew: more may have come while answers were told again.
        self.intake.order.rewind(last + 1, [e.seq for e in self.intake.here() if e.seq > last])
        if not self.doom:
            await self._hands.take_up()
        while (seq := await self._due()) is not None:
            due = self.intake.entries.get(seq)
            if due is None or (due.ended and not due.again):
                continue
            if self.doom:
                if not due.ended:
                    await self._end(due, Failed(error=self.doom, category="user"))
                continue
            await self._start(due)
        await self._under_way.settle()
        await self._hands.leave(ended=self.doom)

    async def _due(self) -> int | None:
        """The next number; None when it is time to leave."""
        self.intake.let_go()
        while (seq := self.intake.order.take()) is None:
            self._changed.clear()
            self._under_way.collect()
            if self.doom and not self.intake.order.n_waiting:
                return None
            gap_at, now = self.intake.order.gives_up_at(), self._clock()
            until = now + self._idle_s if gap_at is None else gap_at
            if self.doom and gap_at is not None:
                until = now
            try:
                async with asyncio.timeout(max(0.0, until - now)):
                    await self._changed.wait()
            except TimeoutError:
                if gap_at is not None:
                    await self.intake.give_up_missing()
                elif not self._under_way.tasks and self._hands.idle():
                    return None
        return seq

    async def _start(self, entry: Entry) -> None:
        """Carry out, or begin to where the next need not wait."""
        for seq in range(entry.seq, entry.seq + AHEAD // 2):
            if (near := self.intake.entries.get(seq)) is not None and near.durable.is_set():
                self._reading.begin(near)
        assert entry.read is not None
        try:
            work = await asyncio.shield(entry.read)
        except Exception as error:
            await self._fail(entry, error)
            return
        await self._while_held()
        await self._under_way.begin(entry.seq, self._carry(entry, work))
        if isinstance(work, Batch):
            self._under_way.collect()
        else:
            await self._under_way.settle()

    async def _while_held(self) -> None:
        """Wait for as long as the tenant is over a limit."""
        while why := self._hands.held():
            self._hold = Waiting(state="paused_rate_limit", reason=why)
            await asyncio.sleep(AGAIN_S)

    async def _carry(self, entry: Entry, work: Work) -> None:
        """Do it and write down how it ended."""
        again = entry.ended
        try:
            if isinstance(work, Step) and (why := self._lost_or_spoilt(entry)) is not None:
                raise why
            body = await self._hands.carry(entry, work)
            self._hold = None
        except Down:
            raise
        except Exception as error:
            if again:
                self._lost = f"request {entry.seq} could not be done again ({error})"
            else:
                await self._fail(entry, await self._blamed(entry, error))
            return
        finally:
            if isinstance(work, Step):
                self._lost = ""
        if not again:
            await self._end(entry, Ready(kind=entry.kind, body=body))

    def _lost_or_spoilt(self, entry: Entry) -> NotDone | None:
        """Why what stands behind gradients must not be done."""
        return not_done(self._lost, 500) if self._lost else spoilt(self.intake.entries, entry)

    async def _blamed(self, entry: Entry, error: Exception) -> Exception:
        """The error, with the number of the request that is to blame if it is not this one: who
        carries out knows no numbers."""
        if not isinstance(error, NotDone):
            return error
        await self._under_way.ended_before(entry.seq)
        return self._lost_or_spoilt(entry) or error

    async def settled(self, step: Entry) -> None:
        """Before a version is committed: what came before it is in the store. NotDone if some of it
        failed."""
        await self._under_way.ended_before(step.seq)
        if step.kind is Kind.OPTIM_STEP and (why := self._lost_or_spoilt(step)) is not None:
            raise why

    async def _fail(self, entry: Entry, error: Exception) -> None:
        await self._end(entry, self._endings.failure(entry, error))

    async def _end(self, entry: Entry, outcome: Ready | Failed) -> None:
        await self._endings.end(entry, outcome)
        if entry.kind in COMMITS and isinstance(outcome, Ready):
            self.intake.committed = entry.seq

    def unmade(self) -> NotDone:
        """Why there is no model to work on, if so."""
        return unmade(self.intake.entries.get(0))

    def waits(self) -> Waiting | None:
        """What it waits for; None if nothing is asked of it."""
        return (
            None if all(entry.ended for entry in self.intake.entries.values()) else self._waiting()
        )

    def _waiting(self) -> Waiting:
        if self._hold is not None:
            return self._hold
        if self._log.trouble:
            return _held(self._log.trouble)
        gap_at = self.intake.order.gives_up_at()
        if gap_at is not None and not self._under_way.tasks:
            left_s = max(0.0, gap_at - self._clock())
            return Waiting(
                reason=f"request {self.intake.order.next} has not come: what came after it goes on "
                f"without it in {left_s:.0f} s"
            )
        why = self._hands.waits()
        return _held(why) if why else Waiting()


def _held(why: str, *, position: int = 0) -> Waiting:
    return Waiting(state="paused_capacity", reason=why, position=position)
