"""House: everything behind the doors, for one state directory.

Owns the directory's lock, the one store and its writer, the launches of the base models, the lines
of the models, the samples, the sessions. What lies under the directory:

    lock, plait.db           who owns it; the store (unless that is elsewhere)
    models/NAME/             the launch of one base model: its runs' versions, its logs
    checkpoints/RUN/…        what clients saved
    sessions/…               what samplers pin

Invariants: opened again after whatever end, it goes on where the store says, and nobody needs to
ask for that; a request of one model, tenant or base model that fails or waits holds up no other's.
"""

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from plait.core.errors import NotFound, StoreError
from plait.core.ids import TenantId
from plait.jobs.launch import Launch
from plait.policies.registry import DEFAULT
from plait.runtime.session import Shared
from plait.runtime.settings import Settings
from plait.service.access import Access
from plait.service.carry import Carrier
from plait.service.checkpoints import Checkpoints
from plait.service.clients import Clients
from plait.service.custom_losses import CustomLosses
from plait.service.flags import flags_of
from plait.service.held import Total
from plait.service.launches import Launches
from plait.service.line import IDLE_S, Line
from plait.service.lines import Lines
from plait.service.log import Log, Owner
from plait.service.models import Models
from plait.service.outside import Outside
from plait.service.ports import ModelOffer
from plait.service.requests import Requests
from plait.service.residents import Residents, Share
from plait.service.sample_lane import SampleLane
from plait.service.sampling import Sampling
from plait.service.sessions import LOST_S, Sessions
from plait.service.work import Codec
from plait.store.database import sqlite_url
from plait.store.lock import LaunchLock
from plait.store.store import Store
from plait.store.upkeep import tidy
from plait.store.writer import GroupWriter

log = logging.getLogger(__name__)

TICK_S = 1.0
"""How often sessions, checkpoints and idle lines are looked at: their times are minutes."""
SWEEP_TICKS = 30
"""Ticks between two looks at what has expired."""
TIDY_TICKS = 60
"""Ticks between two pieces of what the store forgets: each looks through the sessions of months."""


class House:
    """Use as ``async with``."""

    def __init__(
        self,
        directory: str | Path,
        *,
        models: Sequence[str],
        codec: Codec,
        sampling: Callable[["House"], Sampling] | None = None,
        settings: Settings | None = None,
        policy: str = DEFAULT,
        database: str | None = None,
        session_lost_s: float = LOST_S,
        idle_s: float = IDLE_S,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        new_hex: Callable[[int], str] = secrets.token_hex,
    ) -> None:
        """``models``: base models by name, served from the first moment on. ``database``: a URL,
        else ``plait.db`` in the directory. ``sampling``: who samples, if not ``outside``."""
        self.directory = Path(directory).resolve()
        self.codec, self.wall, self.clock = codec, wall, clock
        self._names, self._settings, self._policy = tuple(models), settings or Settings(), policy
        self._url = database or sqlite_url(self.directory / "plait.db")
        self._idle_s = idle_s
        self._lost_s, self._new_hex, self._sampling = session_lost_s, new_hex, sampling
        self._held: defaultdict[TenantId, Total] = defaultdict(Total)
        self._to_free: set[str] = set()
        """Sessions that are over and whose samplers are not free yet."""
        self.boot = new_hex(4)
        """Of this life: what was promised in another may have to be asked for again."""

    async def __aenter__(self) -> Self:
        """Take the directory, open the store, go on with what was under way. Workers start in the
        background: what needs them waits and says so."""
        async with AsyncExitStack() as stack:
            stack.enter_context(LaunchLock(self.directory))
            self.store = stack.enter_context(await asyncio.to_thread(Store, self._url))
            await asyncio.to_thread(self.store.database.check)
            self.writer = GroupWriter(self.store.database)
            stack.callback(self.writer.close)
            self.access = await Access.open(self.store, self.writer, wall=self.wall, now=self.clock)
            await self._build()
            stack.push_async_callback(self.launches.close)
            stack.push_async_callback(self.lines.stop)
            stack.push_async_callback(self.sampling.close)
            await self.sessions.recover()
            await self.sampling.recover()
            self._to_free.update(await asyncio.to_thread(self.store.samplers.sessions_over))
            await self.lines.recover(self.sessions.lives)
            background = [
                asyncio.create_task(self.launches.warm(), name="warm"),
                asyncio.create_task(self._tick(), name="tick"),
            ]
            stack.push_async_callback(_end, background)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop in order; whatever is under way goes on in the next life."""
        await self._stack.aclose()

    async def _build(self) -> None:
        self.launches = await asyncio.to_thread(
            lambda: Launches(
                self.directory,
                self._names,
                settings=self._settings,
                policy=self._policy,
                shared=Shared(store=self.store, writer=self.writer),
            )
        )
        self.log = Log(self.store, self.writer, wall=self.wall)
        self.checkpoints = Checkpoints(
            self.directory, self.store, self.writer, wall=self.wall, limits=self.access.limits
        )
        self._residents = Residents(self.launches, self.store, self.writer, share=self.share)
        self.sessions = Sessions(
            self.store,
            self.writer,
            wall=self.wall,
            clock=self.clock,
            new_id=lambda: f"s-{self._new_hex(8)}",
            on_end=self._session_over,
            lost_s=self._lost_s,
        )
        self.lines = Lines(
            self.log, make=self._line, check_session=self.sessions.check, clock=self.clock
        )
        self.models = Models(
            self.store,
            self.writer,
            self.checkpoints,
            wall=self.wall,
            new_session=lambda who: f"s-{self._new_hex(8)}",
            check_session=self.sessions.check,
        )
        self.sampling = self._make_sampling()
        losses = CustomLosses(
            self.store,
            self.writer,
            self.codec,
            check_session=self.sessions.check,
            wall=self.wall,
        )
        self.requests = Requests(self.lines, self.sampling.samples, losses)
        self.clients = Clients(
            self.sessions,
            self.sampling,
            self.store,
            flags=lambda who: flags_of(self.access.tenant(who.tenant_id).limits),
        )

    def _make_sampling(self) -> Sampling:
        if self._sampling is not None:
            return self._sampling(self)
        return Outside(
            directory=self.directory,
            launches=self.launches,
            store=self.store,
            writer=self.writer,
            models=self.models,
            access=self.access,
            codec=self.codec,
            share=self.share,
            boot=self.boot,
            wall=self.wall,
            clock=self.clock,
        )

    def offers(self) -> Sequence[ModelOffer]:
        """Base models served."""
        return self.launches.offers()

    async def launch(self, base_model: str) -> Launch:
        """The running launch of a base model, started on first use; NotFound."""
        return await self.launches.launch(base_model)

    async def lane(self, base_model: str) -> SampleLane:
        """The lane of outside samples of a base model; NotFound."""
        return await self.sampling.lane(base_model)

    def launched(self, base_model: str) -> Launch | None:
        """The running launch of a base model; None if there is none at the moment."""
        return self.launches.launched(base_model)

    def place(self, base_model: str) -> Path:
        """The directory of a base model's launch."""
        return self.launches.place(base_model)

    def share(self, tenant_id: TenantId) -> Share:
        """What a tenant's runs get of the machine."""
        try:
            tenant = self.access.tenant(tenant_id)
        except NotFound:  # one whose runs have outlived it
            return Share()
        return Share(weight=tenant.weight, priority=tenant.priority)

    def _line(self, owner: Owner) -> Line:
        def hands(line: Line) -> Carrier:
            return Carrier(
                line,
                residents=self._residents,
                checkpoints=self.checkpoints,
                sampling=self.sampling,
                codec=self.codec,
                limits=self.access.limits,
                wall=self.wall,
            )

        return Line(
            owner,
            log=self.log,
            codec=self.codec,
            hands=hands,
            clock=self.clock,
            idle_s=self._idle_s,
            tenant=self._held[owner.tenant_id],
        )

    async def _session_over(self, session_id: str, reason: str) -> None:
        self.lines.end_session(session_id, f"session {session_id} is over ({reason})")
        self._to_free.add(session_id)
        await self._free()

    async def _free(self) -> None:
        """Free the samplers of sessions that are over: at their end; or, where that failed or a
        crash came first, when there is time."""
        for session_id in list(self._to_free):
            await self.sampling.end_session(session_id)
            self._to_free.discard(session_id)

    async def _tick(self) -> None:
        n = 0
        while True:
            await asyncio.sleep(TICK_S)
            n += 1
            await _recorded(self.sessions.end_lost())
            await _recorded(self._free())
            if n % SWEEP_TICKS == 0:
                self.lines.forget_idle()
                await _recorded(self.checkpoints.expire_due())
                await _recorded(self.launches.settle())
            if n % TIDY_TICKS == 0:
                await _recorded(self.writer.write(tidy, self.store, now=self.wall()))


async def _recorded(duty: Awaitable[object]) -> None:
    """Do one of the house's duties: one that fails keeps it from no other, and is tried again."""
    try:
        await duty
    except StoreError as error:  # a full disk, say
        log.error("housekeeping: %s", error)
    except Exception:  # the recorder: nobody else would hear of it, and ticks must go on
        log.exception("housekeeping")


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
