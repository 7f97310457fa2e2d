"""Intake: the requests of one model as they come: durable, and in their place, before they are
acknowledged. A number is one request's for good, or was used up without any. One that is far beyond
all others (``order``) is refused and stays unused: its model's client alone waits for it.

What has ended is bounded in memory, gradients excepted until a step commits them (a crash of the
workers has them made again): what ended long ago is let go, and only the store knows of it then.
Nothing is let go from which a step that is under way, or on its way here, could still learn why it
must fail (``spoilt``); nor is number 0.
"""

from collections.abc import Callable, Mapping

from plait.core.errors import RequestError
from plait.runtime.whole import whole
from plait.service.entry import Entry
from plait.service.held import Held
from plait.service.log import Log, Owner
from plait.service.names import request_id
from plait.service.order import Order
from plait.service.ports import Failed
from plait.service.reading import Reading
from plait.service.stamps import Stamps
from plait.service.work import COMMITS, Kind
from plait.store.requests import RequestRow
from plait.store.rows import MutationStatus

AHEAD = 8
"""Requests that are read before their turn, and gradients asked for at once: enough that a worker
never waits for the next, few enough that a line's memory is bounded."""
REMEMBERED = 1024
"""The newest numbers of which a line itself knows how they ended. It looks for older ones when so
many more have been due: about three times as many are the most."""
GIVEN_UP = "it never came, and what came after it has waited long enough"


class Intake:
    """What has been asked of one model, by number."""

    def __init__(
        self,
        owner: Owner,
        *,
        log: Log,
        reading: Reading,
        held: Held,
        stamps: Stamps,
        clock: Callable[[], float],
        on_come: Callable[[], None],
    ) -> None:
        """``on_come``: called when a number has been given to a request, or used up."""
        self._owner, self._log, self._reading, self.held = owner, log, reading, held
        self._stamps, self._clock, self._on_come = stamps, clock, on_come
        self.order = Order()
        self.entries: dict[int, Entry] = {}
        self.committed = -1
        """The last number that a version holds: what came before is not done again."""
        self._sweep_at, self._swept_at = REMEMBERED, 0.0
        """From which number on it is looked for what can be let go, and when it was last."""

    async def submit(self, seq: int, kind: Kind, body: bytes) -> str:
        """Make a request durable and put it in its place; its id, or the original's. RequestError
        if its number is far beyond all others; Limited if there is too much already."""
        arrived_at = self._stamps.arrival()
        while (known := self.entries.get(seq)) is not None:
            await known.durable.wait()
            if self.entries.get(seq) is known:
                return request_id(self._owner.model_id, seq)
        if self.order.too_far(seq):
            raise RequestError(
                f"request {seq} has come and {self.order.next} has not: number a model's requests "
                "one after the other, from 1"
            )
        if not self.order.used(seq):
            if seq not in self.order.missing():
                self.held.check(commits=kind in COMMITS)
            await whole(self._accept(seq, kind, body, arrived_at))
        return request_id(self._owner.model_id, seq)

    async def _accept(self, seq: int, kind: Kind, body: bytes, arrived_at: float) -> None:
        entry = self.entries[seq] = Entry(seq=seq, kind=kind, accepted_at=arrived_at)
        self.held.put(seq, len(body))
        try:
            await self._log.accept(self._owner, seq, kind, body, now=arrived_at)
        except BaseException:
            del self.entries[seq]
            self.held.drop(seq)
            raise
        finally:
            entry.durable.set()
        if seq < self.order.next + AHEAD:
            entry.body = body
            self._reading.begin(entry)
        self.order.put(seq, self._clock())
        self._on_come()

    def has(self, seq: int) -> bool:
        """True if there was a request of that number, or it was given up."""
        return seq in self.entries or self.order.used(seq)

    async def skip(self, seq: int, reason: str) -> None:
        """Use up a number; one that could not be given to a request either stays as it is."""
        if seq not in self.entries and not (self.order.used(seq) or self.order.too_far(seq)):
            await whole(self._skip(seq, reason))

    async def _skip(self, seq: int, reason: str, *, given_up: bool = False) -> None:
        entry = Entry(seq=seq, kind=Kind.SKIPPED, accepted_at=self._stamps.next())
        self.entries[seq] = entry
        try:
            await self._log.skip(self._owner, seq, reason, now=entry.accepted_at)
        except BaseException:
            del self.entries[seq]
            raise
        finally:
            entry.durable.set()
        entry.end(Failed(error=reason, category="user"), entry.accepted_at)
        self.order.put(seq, None if given_up else self._clock())
        self._on_come()

    async def give_up_missing(self) -> None:
        """Use up the numbers that hold up others and have not come."""
        for seq in self.order.missing():
            known = self.entries.get(seq)
            if known is not None:  # it is on its way to the disk
                await known.durable.wait()
                continue
            await whole(self._skip(seq, GIVEN_UP, given_up=True))

    def recall(self, rows: list[RequestRow], sizes: Mapping[int, int]) -> None:
        """What the store knows, before anything else is asked; ``sizes``: of the bodies it has."""
        for seq, size in sizes.items():
            self.held.put(seq, size)
        for row in rows:
            entry = Entry(seq=row.seq, kind=Kind(row.kind), accepted_at=row.accepted_at)
            entry.durable.set()
            if row.finished_at is not None:
                if row.status is MutationStatus.FAILED:
                    entry.fault = row.category or "unknown"
                entry.ended_at = row.finished_at
                entry.past()
            self.entries[row.seq] = entry
            self._stamps.seen(max(row.accepted_at, row.finished_at or 0.0))
        seqs = sorted(self.entries)
        self.order.rewind(seqs[0] if seqs else 0, seqs, self._clock())
        self._swept_at = self._stamps.next()

    def here(self) -> list[Entry]:
        """Those that are in the store."""
        return [entry for entry in self.entries.values() if entry.durable.is_set()]

    def let_go(self) -> None:
        """Forget what ended before the last look, up to the first that did not. Looks now and then
        only: the more there is, the less often."""
        if self.order.next < self._sweep_at:
            return
        entries = self.entries.values()
        before = min([self._swept_at, *(e.accepted_at for e in entries if not e.ended)])
        late = [e.seq for e in entries if e.ended_at is None or e.ended_at >= before]
        until = min([self.order.next - REMEMBERED, *late])
        for entry in [e for e in entries if 0 < e.seq < until]:
            if entry.seq <= self.committed or not entry.again:
                del self.entries[entry.seq]
        self._sweep_at = self.order.next + max(REMEMBERED, len(self.entries) // 2)
        self._swept_at = self._stamps.next()
