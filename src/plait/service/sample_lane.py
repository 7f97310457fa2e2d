"""The sample lane: samples of outside clients on their way to one base model's rollout workers.

A sample is parked until its turn comes (``policies.turns``) and the engine has room: only so many
are in flight that the engine is fed, so that who comes next is decided here, by shares, and not by
who came first with most. One whose adapter is not loaded has it loaded when its turn comes; the
others of its run wait for that, other runs go on. So that the first samples of a new version need
not wait, it is loaded as soon as it is known (``prepare``).

Invariants: samples in flight hold at most ``room`` continuations and, by what their run's samples
came to of late, ``room_tokens`` of cache, plus one sample each; every sample that was accepted
ends, with a result or an error, or is given up by its caller; at most ``MAX_PARKED`` of a tenant
wait.

Left to others: names of policies (``samplers``), numbers and answers kept (``sample_requests``).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plait.core.errors import Limited, PlaitError
from plait.core.ids import OpId, TenantId
from plait.core.operations import SampleResult
from plait.policies.turns import Turns
from plait.runtime import messages as m
from plait.runtime.head import Head
from plait.runtime.samples import Samples
from plait.service.adapters import Adapters
from plait.service.ports import Waiting
from plait.service.snapshots import Snapshots
from plait.service.ticket import Hold, Share, Source, Spent, Ticket, as_asked, operation
from plait.service.work import SampleWork

ADAPTER_SLOTS = 64
"""Adapters of outside samplers loaded at once: at rank 32 one is 20 MB for a model of 135 M."""
FED = 1.25
"""Continuations in flight per place in the engine's forward steps: some must stand ready when
others end."""
MAX_PARKED = 20_000
"""Of one tenant. The SDK sends 2,000 at once, and asks again after a 429."""
MEMORY = 0.2
"""Weight of the newest sample in what a run's samples are expected to come to."""
REMEMBERED = 10_000
"""Runs, the latest, of which it is known what their samples come to."""
RETRY_S = 1.0
LOOK_S = 1.0
"""How often it is asked whether a tenant is over its limit still: the operator may have raised it.
"""

OnDrawn = Callable[[m.Drawn], None]


class SampleLane:
    """Outside samples of one base model."""

    def __init__(
        self,
        samples: Samples,
        *,
        room: int,
        room_tokens: int,
        longest: int,
        pins: Snapshots,
        slots: int = ADAPTER_SLOTS,
        share: Callable[[Source], Share] = lambda source: Share(),
        hold: Callable[[TenantId], Hold | None] = lambda tenant: None,
        on_spent: Callable[[Spent], None] = lambda spent: None,
    ) -> None:
        """``longest``: tokens that one sample may have, its prompt's included."""
        self._samples, self._room, self._room_tokens = samples, room, room_tokens
        self.longest = longest
        self._share, self._hold, self._on_spent = share, hold, on_spent
        self._slots = Adapters(samples, pins, slots).slots
        self._turns = Turns()
        self._parked: dict[str, Ticket] = {}
        self._parked_of: dict[TenantId, int] = {}
        self._held: dict[TenantId, Hold] = {}
        self._n_flying = 0
        self._tokens_flying = 0.0
        self._drawn: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Tokens that a continuation of a run came to of late."""
        self._n_ops = 0
        self._fetches: set[asyncio.Task[None]] = set()
        self._closed: PlaitError | None = None

    def __len__(self) -> int:
        return len(self._parked)

    def ticket(self, source: Source, work: SampleWork) -> Ticket:
        """A place in the lane, to be drawn with ``draw``; Limited if the tenant has too many."""
        if self._parked_of.get(source.tenant_id, 0) >= MAX_PARKED:
            raise Limited(
                f"{MAX_PARKED:,} samples of yours are waiting: ask again when some have ended",
                retry_after_s=RETRY_S,
            )
        self._n_ops += 1
        return Ticket(
            source,
            work,
            OpId(f"outside/{self._n_ops}"),
            self._cost(source, work),
            asyncio.get_running_loop().create_future(),
        )

    async def draw(self, ticket: Ticket, *, on_drawn: OnDrawn | None = None) -> SampleResult:
        """Wait for its turn and draw it. Cancelled, it leaves the lane wherever it is."""
        source, work = ticket.source, ticket.work
        try:
            self._park(ticket)
            await ticket.go
        except BaseException:
            self._give_up(ticket)
            raise
        op = operation(work, ticket.op_id, *source.guest, watched=on_drawn is not None)
        result = None
        try:
            result = (await self._samples.sample((op,), on_drawn=on_drawn))[0]
        finally:
            self._landed(ticket, result)
        return as_asked(result, work)

    async def sample(
        self, source: Source, work: SampleWork, *, on_drawn: OnDrawn | None = None
    ) -> SampleResult:
        """Both in one."""
        return await self.draw(self.ticket(source, work), on_drawn=on_drawn)

    def prepare(self, source: Source) -> None:
        """Samples of this are to come: have its adapter loaded by then, if nothing that is drawn
        with has to give way for it. Where that fails, whoever waits for it is told, and the next
        one tries again."""
        if self._closed is None and source.directory is not None:
            self._slots.prepare(source.guest, str(source.directory))

    def waits_for(self, ticket: Ticket) -> Waiting:
        """Why a sample has not ended yet, in words for its owner."""
        held = self._held.get(ticket.source.tenant_id)
        if held is not None and ticket.state == "parked":
            return Waiting(state="paused_rate_limit", reason=held.reason)
        standing = self._turns.standing(ticket.op_id)
        if standing is not None:
            what = "its run's adapter is being loaded" if standing.held else "the engine is full"
            return Waiting(
                state="paused_capacity",
                reason=f"{what}; position {standing.ahead + 1} of its run, {standing.parked:,} "
                "samples wait in all and are served by the shares of tenants and runs",
            )
        if ticket.state == "loading":
            return Waiting(
                state="paused_capacity", reason="its turn has come, its adapter is being loaded"
            )
        return Waiting()

    def close(self, error: PlaitError) -> None:
        """Nothing is drawn here any more: what waits ends with the reason."""
        self._closed = error
        for ticket in self._parked.values():
            if not ticket.go.done():
                ticket.go.set_exception(error)

    def _park(self, ticket: Ticket) -> None:
        if self._closed is not None:
            raise self._closed
        tenant, share = ticket.source.tenant_id, self._share(ticket.source)
        ticket.state = "parked"
        self._parked[ticket.op_id] = ticket
        self._parked_of[tenant] = self._parked_of.get(tenant, 0) + 1
        self._turns.park(
            ticket.op_id,
            tenant=tenant,
            run=ticket.source.run,
            cost=ticket.cost,
            weight=share.weight,
            run_weight=share.run_weight,
            priority=share.priority,
        )
        self._check_limits(tenant)
        self._pump()

    def _pump(self) -> None:
        """Send on whose turn it is while the engine has room."""
        while self._n_flying < self._room and self._tokens_flying < self._room_tokens:
            turn = self._turns.take()
            if turn is None:
                return
            ticket = self._unpark(turn.item)
            if ticket.go.done():  # its caller has gone and has not got round to saying so
                self._turns.correct(*ticket.flow, -ticket.cost)
            elif ticket.source.directory is None or self._slots.use(ticket.source.guest):
                self._launch(ticket)
            else:
                ticket.state = "loading"
                self._turns.hold(*ticket.flow)
                fetch = asyncio.ensure_future(self._fetch(ticket))
                self._fetches.add(fetch)
                fetch.add_done_callback(self._fetches.discard)

    async def _fetch(self, ticket: Ticket) -> None:
        """Have the adapter of a sample loaded; its run is out of turn meanwhile."""
        directory = ticket.source.directory
        assert directory is not None
        try:
            await self._slots.acquire(ticket.source.guest, str(directory))
        except Exception as error:  # of whatever kind: somebody waits for this sample
            if not ticket.go.done():
                ticket.go.set_exception(error)
        else:
            if ticket.go.done():  # given up meanwhile
                self._slots.release(ticket.source.guest)
            else:
                self._launch(ticket)
        finally:
            self._turns.release(*ticket.flow)
            self._pump()

    def _launch(self, ticket: Ticket) -> None:
        ticket.state = "drawing"
        self._n_flying += ticket.work.n
        self._tokens_flying += ticket.cost
        ticket.go.set_result(None)

    def _landed(self, ticket: Ticket, result: SampleResult | None) -> None:
        """It has ended, or was given up in flight."""
        source, work = ticket.source, ticket.work
        self._n_flying -= work.n
        self._tokens_flying -= ticket.cost
        if source.directory is not None:
            self._slots.release(source.guest)
        n_drawn = 0
        if result is not None:
            n_drawn = sum(len(s.tokens) for s in result.samples)
            before = self._drawn.get(ticket.flow, n_drawn / work.n)
            self._drawn[ticket.flow] = before + MEMORY * (n_drawn / work.n - before)
            self._drawn.move_to_end(ticket.flow)
            if len(self._drawn) > REMEMBERED:
                self._drawn.popitem(last=False)
            self._turns.correct(*ticket.flow, len(work.prompt) + n_drawn - ticket.cost)
        served = self._samples.guests.settle(source.guest[0])
        self._on_spent(
            Spent(
                source=source,
                prompt_tokens=len(work.prompt),
                sampled_tokens=n_drawn,
                device_s=served.device_s,
            )
        )
        self._check_limits(source.tenant_id)
        self._pump()

    def _give_up(self, ticket: Ticket) -> None:
        """It will not be drawn: its caller has gone, or its adapter cannot be loaded."""
        if self._turns.drop(ticket.op_id):
            self._unpark(ticket.op_id)
        elif ticket.state == "drawing":
            self._landed(ticket, None)

    def _unpark(self, item: str) -> Ticket:
        ticket = self._parked.pop(item)
        left = self._parked_of[ticket.source.tenant_id] - 1
        self._parked_of[ticket.source.tenant_id] = left
        if not left:
            del self._parked_of[ticket.source.tenant_id]
        return ticket

    def _cost(self, source: Source, work: SampleWork) -> float:
        """Tokens that it is expected to come to."""
        most = work.params.max_tokens
        each = min(most, self._drawn.get((source.tenant_id, source.run), most))
        return len(work.prompt) + work.n * each

    def _check_limits(self, tenant: TenantId) -> None:
        """Keep a tenant that is over a limit out of turn until it may be asked again."""
        if tenant in self._held or (hold := self._hold(tenant)) is None:
            return
        self._held[tenant] = hold
        self._turns.hold(tenant)
        again_s = min(hold.retry_after_s, LOOK_S)
        asyncio.get_running_loop().call_later(again_s, self._ask_again, tenant)

    def _ask_again(self, tenant: TenantId) -> None:
        del self._held[tenant]
        self._turns.release(tenant)
        self._check_limits(tenant)
        self._pump()


def lane_of(head: Head, pins: Path, **options: Any) -> SampleLane:
    """The lane of a head's workers; ``options`` as in ``SampleLane``. ``pins`` is its own
    directory, beside the versions; what an earlier life has left there goes."""
    settings = head.settings
    Snapshots(pins).clear()
    return SampleLane(
        head.samples,
        room=round(FED * settings.max_seqs * settings.rollout_workers),
        room_tokens=settings.kv_blocks * settings.block_size,
        longest=min(head.shape.max_context, settings.worker_kv_blocks * settings.block_size),
        pins=Snapshots(pins),
        **options,
    )
