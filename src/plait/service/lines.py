"""Lines: the numbered requests of all models. A line is read from the store when somebody asks for
it, and forgotten when it sleeps and nobody does any more.
"""

import asyncio
from collections.abc import Awaitable, Callable

from plait.core.errors import NotFound
from plait.core.ids import TenantId
from plait.service.line import Line
from plait.service.log import Log, Owner
from plait.service.names import read_request_id, session_of
from plait.service.ports import Outcome, Waiting, Who
from plait.service.work import Kind

FORGET_S = 900.0
"""A line that has slept for so long leaves memory; the store has it."""
FIRST = (Kind.CREATE_MODEL, Kind.LOAD_MODEL)
"""What makes a model, with number 0."""


class Lines:
    """Lines by model."""

    def __init__(
        self,
        log: Log,
        *,
        make: Callable[[Owner], Line],
        check_session: Callable[[Who, str], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        """``check_session``: raises unless the session is the caller's and lives."""
        self._log, self._make, self._check_session = log, make, check_session
        self._clock = clock
        self._lines: dict[str, Line] = {}
        self._loading: dict[str, asyncio.Task[Line | None]] = {}

    async def recover(self, lives: Callable[[str], bool]) -> None:
        """Go on with whatever had not ended in an earlier life. ``lives``: of sessions."""
        for model_id in await self._log.open_lines():
            line = await self._find(model_id)
            if line is not None and lives(line.owner.session_id):
                line.wake()
            elif line is not None:
                line.end("its session is over")

    async def submit(
        self, who: Who, session_id: str, model_id: str, seq: int, kind: Kind, body: bytes
    ) -> str:
        """As ``ports.Requests.submit``."""
        if session_of(model_id) != session_id and session_id:
            raise NotFound(f"there is no model {model_id} in session {session_id}")
        line = await self._find(model_id)
        if line is None or not line.intake.has(seq):
            await self._check_session(who, session_of(model_id))
        if line is None:
            if kind not in FIRST:
                raise NotFound(f"there is no model {model_id}: create it first")
            line = self._lines.get(model_id) or self._make(
                Owner(model_id=model_id, session_id=session_of(model_id), tenant_id=who.tenant_id)
            )
            self._lines[model_id] = line
        _check(line, who.tenant_id, model_id)
        line.used_s = self._clock()
        return await line.intake.submit(seq, kind, body)

    async def skip(self, who: Who, model_id: str, seq: int, reason: str) -> None:
        """As ``ports.Requests.skip``."""
        line = await self.line(who, model_id)
        await line.intake.skip(seq, reason)

    async def outcome(self, who: Who, request_id: str, *, wait_s: float) -> Outcome:
        """As ``ports.Requests.outcome``, of numbered requests."""
        model_id, seq = read_request_id(request_id)
        line = await self.line(who, model_id)
        found = await line.outcome(seq, wait_s)
        if found is None:
            raise NotFound(f"there is no request {request_id}")
        return found

    async def waits(self, who: Who, model_id: str) -> Waiting | None:
        """As ``ports.Requests.waits``."""
        line = await self._find(model_id)
        if line is None:
            return None
        _check(line, who.tenant_id, model_id)
        return line.waits()

    async def line(self, who: Who, model_id: str) -> Line:
        """A line of the caller's; NotFound."""
        line = await self._find(model_id)
        if line is None:
            raise NotFound(f"there is no model {model_id[:120]}")
        _check(line, who.tenant_id, model_id)
        line.used_s = self._clock()
        return line

    def end_session(self, session_id: str, reason: str) -> None:
        """The models of a session take no more: what is queued fails, and they leave their
        workers. (A line that is not in memory has nothing queued, and no run.)"""
        for line in self._lines.values():
            if line.owner.session_id == session_id:
                line.end(reason)

    def forget_idle(self) -> None:
        """Let go of lines that sleep."""
        now = self._clock()
        idle = [
            m for m, line in self._lines.items() if not line.awake and now - line.used_s > FORGET_S
        ]
        for model_id in idle:
            del self._lines[model_id]

    async def stop(self) -> None:
        """Leave everything as it is."""
        await asyncio.gather(*(line.stop() for line in self._lines.values()))

    async def _find(self, model_id: str) -> Line | None:
        if (line := self._lines.get(model_id)) is not None:
            return line
        session_of(model_id)
        loading = self._loading.get(model_id)
        if loading is None:
            loading = asyncio.create_task(self._load(model_id))
            self._loading[model_id] = loading
            loading.add_done_callback(lambda _: self._loading.pop(model_id, None))
        return await asyncio.shield(loading)

    async def _load(self, model_id: str) -> Line | None:
        rows = await self._log.line(model_id)
        if not rows:
            return None
        sizes = await self._log.sizes(model_id)
        if model_id not in self._lines:
            first = rows[0]
            owner = Owner(model_id=model_id, session_id=first.session_id, tenant_id=first.tenant_id)
            line = self._make(owner)
            line.intake.recall(rows, sizes)
            self._lines[model_id] = line
        return self._lines[model_id]


def _check(line: Line, tenant_id: TenantId, model_id: str) -> None:
    if line.owner.tenant_id != tenant_id:
        raise NotFound(f"there is no model {model_id}")
