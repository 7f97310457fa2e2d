"""Clients: sessions and their samplers behind one port."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plait.core.ids import TenantId
from plait.service.names import MODEL_ID, model_of, session_of
from plait.service.ports import Page, SessionInfo, Who
from plait.service.sampling import Sampling
from plait.service.sessions import Sessions
from plait.service.sessions import told as told_of
from plait.store.sessions import SessionRow
from plait.store.store import Store


class Clients:
    """``ports.Clients``."""

    def __init__(
        self,
        sessions: Sessions,
        samplers: Sampling,
        store: Store,
        flags: Callable[[Who], Mapping[str, Any]] = lambda _who: {},
    ) -> None:
        """``flags``: what a tenant's clients are told other than everybody's."""
        self._sessions, self._samplers, self._store = sessions, samplers, store
        self._flags = flags

    async def open_session(self, who: Who, told: Mapping[str, Any]) -> str:
        """A new session's id."""
        return await self._sessions.open(who, told)

    async def heartbeat(self, who: Who, session_id: str) -> None:
        """It is alive."""
        await self._sessions.heartbeat(who, session_id)

    async def finish(self, who: Who, session_id: str, reason: str, detail: str) -> None:
        """End a session."""
        await self._sessions.finish(who, session_id, reason, detail)

    async def open_sampler(
        self, who: Who, session_id: str, seq: int, *, base_model: str | None, path: str | None
    ) -> str:
        """A sampler of a base model or a path."""
        await self._sessions.check(who, session_id)
        return await self._samplers.open(who, session_id, seq, base_model=base_model, path=path)

    async def sampler(self, who: Who, sampler_id: str) -> Mapping[str, Any]:
        """One sampler."""
        return await self._samplers.info(who, sampler_id)

    async def join(self, who: Who, sampler_id: str) -> int:
        """A number for a new copy of a sampling client."""
        return await self._samplers.join(who, sampler_id)

    async def session(self, who: Who, session_id: str) -> SessionInfo:
        """One session."""
        row = await self._sessions.row(who, session_id)
        return (await asyncio.to_thread(self._told, who.tenant_id, [row]))[0]

    async def sessions(self, who: Who, *, limit: int, offset: int) -> Page[SessionInfo]:
        """The tenant's sessions, newest first."""
        page = await self._sessions.page(who, limit=limit, offset=offset)
        items = await asyncio.to_thread(self._told, who.tenant_id, page.items)
        return Page(items=items, total=page.total)

    async def flags(self, who: Who) -> Mapping[str, Any]:
        """What this tenant's clients are told other than everybody's."""
        return self._flags(who)

    def _told(self, tenant_id: TenantId, rows: Sequence[SessionRow]) -> list[SessionInfo]:
        """Sessions of one tenant, each kind of row read once for all of them."""
        models: defaultdict[str, list[str]] = defaultdict(list)
        samplers: defaultdict[str, list[str]] = defaultdict(list)
        n_checkpoints: Counter[str] = Counter()
        kept = self._store.checkpoints.n_by_run(tenant_id)
        for run in self._store.runs.list(tenant_id=tenant_id):
            if MODEL_ID.fullmatch(model_id := model_of(run.run_id)):
                session_id = session_of(model_id)
                models[session_id].append(model_id)
                n_checkpoints[session_id] += kept.get(run.run_id, 0)
        for sampler in self._store.samplers.of_sessions([row.session_id for row in rows]):
            samplers[sampler.session_id].append(sampler.sampler_id)
        return [
            told_of(
                row, models[row.session_id], samplers[row.session_id], n_checkpoints[row.session_id]
            )
            for row in rows
        ]
