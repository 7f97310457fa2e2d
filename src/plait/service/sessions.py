"""Sessions: the clients' own, from opening to their end.

A session ends when its client says so, or when nothing has been heard of it for ``LOST_S``; the
first reason stays. Then its models take no more and leave their workers, its samplers are freed,
and what was queued fails; what is on disk stays. Heartbeats are in memory: after a restart each
session that lived has ``LOST_S`` from then on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from plait.core.errors import NotFound, SessionEnded
from plait.core.ids import TenantId
from plait.service.ports import Page, SessionInfo, Who
from plait.store.sessions import SessionRow
from plait.store.store import Store
from plait.store.writer import GroupWriter

LOST_S = 60.0
"""Six heartbeats of the Tinker SDK."""

OnEnd = Callable[[str, str], Awaitable[None]]
"""What a session's end does, given its id and the reason."""


class Sessions:
    """The sessions of all clients."""

    def __init__(
        self,
        store: Store,
        writer: GroupWriter,
        *,
        wall: Callable[[], float],
        clock: Callable[[], float],
        new_id: Callable[[], str],
        on_end: OnEnd,
        lost_s: float = LOST_S,
    ) -> None:
        self._store, self._writer, self._wall, self._clock = store, writer, wall, clock
        self._new_id, self._on_end, self._lost_s = new_id, on_end, lost_s
        self._live: dict[str, TenantId] = {}
        self._heard: dict[str, float] = {}

    async def recover(self) -> None:
        """Go on with the sessions that lived in an earlier life of the house."""
        now = self._clock()
        for row in await asyncio.to_thread(self._store.sessions.live):
            self._live[row.session_id], self._heard[row.session_id] = row.tenant_id, now

    async def open(self, who: Who, told: Mapping[str, Any]) -> str:
        """A new session's id."""
        session_id = self._new_id()
        about = {key: value for key, value in told.items() if key != "project_id"}
        await self._writer.write(
            self._store.sessions.open,
            session_id,
            tenant_id=who.tenant_id,
            told=about,
            project_id=told.get("project_id") or None,
            now=self._wall(),
        )
        self._live[session_id], self._heard[session_id] = who.tenant_id, self._clock()
        return session_id

    async def check(self, who: Who, session_id: str) -> None:
        """NotFound unless there is such a session of the caller's; SessionEnded if it is over."""
        tenant_id = self._live.get(session_id)
        if tenant_id == who.tenant_id:
            return
        if tenant_id is None:
            row = await asyncio.to_thread(self._store.sessions.find, session_id)
            if row is not None and row.tenant_id == who.tenant_id:
                raise SessionEnded(
                    f"session {session_id} is over ({row.reason or 'ended'}): open another"
                )
        raise NotFound(f"there is no session {session_id[:120]!r}")

    async def heartbeat(self, who: Who, session_id: str) -> None:
        """It is alive; SessionEnded if it is not."""
        await self.check(who, session_id)
        self._heard[session_id] = self._clock()

    async def finish(self, who: Who, session_id: str, reason: str, detail: str) -> None:
        """End a session; one that has ended stays as it ended."""
        try:
            await self.check(who, session_id)
        except SessionEnded:
            return
        await self._end(session_id, reason, detail)

    async def end_lost(self) -> list[str]:
        """End those of which nothing has been heard; which."""
        now = self._clock()
        lost = [s for s in self._live if now - self._heard[s] > self._lost_s]
        for session_id in lost:
            await self._end(session_id, "lost", f"no heartbeat for {self._lost_s:.0f} s")
        return lost

    async def _end(self, session_id: str, reason: str, detail: str) -> None:
        row = await self._writer.write(
            self._store.sessions.finish, session_id, reason=reason, detail=detail, now=self._wall()
        )
        self._live.pop(session_id, None)
        self._heard.pop(session_id, None)
        await self._on_end(session_id, row.reason + (f": {row.detail}" if row.detail else ""))

    def lives(self, session_id: str) -> bool:
        """True until it ends."""
        return session_id in self._live

    async def row(self, who: Who, session_id: str) -> SessionRow:
        """One session of the caller's, ended ones too; NotFound."""
        row = await asyncio.to_thread(self._store.sessions.find, session_id)
        if row is None or row.tenant_id != who.tenant_id:
            raise NotFound(f"there is no session {session_id[:120]!r}")
        return row

    async def page(self, who: Who, *, limit: int, offset: int) -> Page[SessionRow]:
        """The caller's sessions, newest first."""
        sessions, tenant_id = self._store.sessions, who.tenant_id
        rows = await asyncio.to_thread(sessions.of_tenant, tenant_id, limit=limit, offset=offset)
        return Page(items=rows, total=await asyncio.to_thread(sessions.n_of_tenant, tenant_id))


def told(
    row: SessionRow, model_ids: list[str], sampler_ids: list[str], n_checkpoints: int
) -> SessionInfo:
    """A session as doors tell of it."""
    return SessionInfo(
        session_id=row.session_id,
        created_at=row.created_at,
        model_ids=model_ids,
        sampler_ids=sampler_ids,
        user_metadata=row.told.get("user_metadata") or {},
        display_name=row.told.get("display_name") or "",
        project_id=row.project_id or "",
        ended=row.reason if row.ended_at is not None else "",
        n_checkpoints=n_checkpoints,
    )
