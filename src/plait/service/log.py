"""Log: the store's requests as lines use them.

A request is on the disk before it is acknowledged, and its end before anybody sees it. An end that
the disk refuses is tried again until it is taken: ``trouble`` says so meanwhile, and nothing else
is held up by it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from plait.core.errors import StoreError
from plait.core.ids import TenantId
from plait.service.ports import Failed, Ready
from plait.service.work import Kind
from plait.store.requests import RequestRow
from plait.store.rows import MutationStatus
from plait.store.store import Store
from plait.store.writer import GroupWriter

AGAIN_S = 1.0
"""Between two tries to write an end: a full disk is not emptied sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose requests they are."""

    model_id: str
    session_id: str
    tenant_id: TenantId


class Log:
    """Requests of all models, durable."""

    def __init__(self, store: Store, writer: GroupWriter, *, wall: Callable[[], float]) -> None:
        self._store, self._writer, self.wall = store, writer, wall
        self.trouble = ""
        """Why ends cannot be written at present, if so."""

    async def accept(self, owner: Owner, seq: int, kind: Kind, body: bytes) -> RequestRow:
        """Make a request durable; the original if the number is taken."""
        asked = await self._writer.write(
            self._store.requests.accept,
            owner.model_id,
            seq,
            session_id=owner.session_id,
            tenant_id=owner.tenant_id,
            kind=kind.value,
            body=body,
            now=self.wall(),
        )
        return asked.row

    async def skip(self, owner: Owner, seq: int, reason: str) -> RequestRow:
        """Use up a number, unless it is taken: then the original."""
        asked = await self._writer.write(
            self._store.requests.skip,
            owner.model_id,
            seq,
            session_id=owner.session_id,
            tenant_id=owner.tenant_id,
            kind=Kind.SKIPPED.value,
            error=reason,
            category="user",
            now=self.wall(),
        )
        return asked.row

    async def end(
        self, model_id: str, seq: int, outcome: Ready | Failed, *, shed: bool = False
    ) -> None:
        """End a request. ``shed``: bodies up to it will never be read again."""
        while True:
            try:
                await self._writer.write(self._end, model_id, seq, outcome, shed)
            except StoreError as error:
                self.trouble = str(error)
                await asyncio.sleep(AGAIN_S)
            else:
                self.trouble = ""
                return

    def _end(self, model_id: str, seq: int, outcome: Ready | Failed, shed: bool) -> None:
        log, now = self._store.requests, self.wall()
        if isinstance(outcome, Failed):
            log.fail(model_id, seq, outcome.error, category=outcome.category, now=now)
            return
        log.finish(model_id, seq, outcome.body, now=now)
        if shed:
            log.shed(model_id, seq)

    async def body(self, model_id: str, seq: int) -> bytes:
        """What a request asked for."""
        body = await asyncio.to_thread(self._store.requests.body, model_id, seq)
        if body is None:
            raise StoreError(f"what request {seq} of {model_id} asked for is gone: ask again")
        return body

    async def answer(self, model_id: str, seq: int, kind: Kind) -> Ready | Failed:
        """How a request that has ended did so."""
        row = await asyncio.to_thread(self._store.requests.find, model_id, seq)
        if row is None or (row.status is MutationStatus.DONE and row.answer is None):
            return Failed(error="its answer is no longer kept", category="server")
        if row.answer is not None:
            return Ready(kind=kind, body=row.answer)
        return Failed(error=row.error, category=row.category or "unknown")

    async def line(self, model_id: str) -> list[RequestRow]:
        """A model's requests by number, without what they carry."""
        return await asyncio.to_thread(self._store.requests.after, model_id)

    async def open_lines(self) -> list[str]:
        """Models that have requests which have not ended."""
        return await asyncio.to_thread(self._store.requests.owners_unended)
