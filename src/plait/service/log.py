"""Log: the store's requests as lines use them.

A request is on the disk before it is acknowledged, and its end before anybody sees it. What the
disk refuses is said in ``trouble`` until it takes something again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from plait.core.custom_graphs import load
from plait.core.custom_losses import CustomLoss
from plait.core.errors import NotFound, StoreError
from plait.core.ids import TenantId
from plait.service.names import read_loss_id, run_of, session_of
from plait.service.ports import Failed, Ready
from plait.service.work import Kind
from plait.store.requests import RequestRow
from plait.store.rows import MutationStatus
from plait.store.store import Store
from plait.store.writer import GroupWriter

RECALLED = 1024
"""Requests before the last committed one that a line begins with: clients may still send those
again."""


Shed = Literal["all", "own", "none"]
"""Which bodies will never be read again once a request has ended: those up to it, its own, none."""


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

    async def accept(
        self, owner: Owner, seq: int, kind: Kind, body: bytes, *, now: float
    ) -> RequestRow:
        """Make a request durable; the original if the number is taken."""
        asked = await self._writer.write(
            self._store.requests.accept,
            owner.model_id,
            seq,
            session_id=owner.session_id,
            tenant_id=owner.tenant_id,
            kind=kind.value,
            body=body,
            now=now,
        )
        return asked.row

    async def skip(self, owner: Owner, seq: int, reason: str, *, now: float) -> RequestRow:
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
            now=now,
        )
        return asked.row

    async def end(
        self, model_id: str, seq: int, outcome: Ready | Failed, *, now: float, shed: Shed
    ) -> bool:
        """End a request; False if the disk does not take it now."""
        try:
            await self._writer.write(self._end, model_id, seq, outcome, now, shed)
        except StoreError as error:
            self.trouble = str(error)
            return False
        self.trouble = ""
        return True

    def _end(
        self, model_id: str, seq: int, outcome: Ready | Failed, now: float, shed: Shed
    ) -> None:
        log = self._store.requests
        if isinstance(outcome, Failed):
            log.fail(model_id, seq, outcome.error, category=outcome.category, now=now)
        else:
            log.finish(model_id, seq, outcome.body, now=now)
        match shed:
            case "all":
                log.shed(model_id, seq)
            case "own":
                log.drop_body(model_id, seq)

    async def shed(self, model_id: str, through: int) -> None:
        """Drop what is left of the bodies of ended requests up to a number, piece by piece: others
        write in between. What the disk refuses, the next step or upkeep drops."""
        with suppress(StoreError):
            while await self._writer.write(self._store.requests.shed, model_id, through):
                pass

    async def body(self, model_id: str, seq: int) -> bytes:
        """What a request asked for."""
        body = await asyncio.to_thread(self._store.requests.body, model_id, seq)
        if body is None:
            raise StoreError(f"what request {seq} of {model_id} asked for is gone: ask again")
        return body

    async def loss(self, model_id: str, loss_id: str) -> CustomLoss:
        """A custom loss of the model's session; NotFound."""
        at = read_loss_id(loss_id)
        row = None
        if at is not None and at[0] == session_of(model_id):
            row = await asyncio.to_thread(self._store.losses.find, *at)
        if row is None:
            raise NotFound(f"there is no custom loss {loss_id[:120]!r} here: create it first")
        return await asyncio.to_thread(load, row.loss)

    async def answer(self, model_id: str, seq: int) -> Ready | Failed | None:
        """How a request that has ended did so; None if there was none."""
        row = await asyncio.to_thread(self._store.requests.find, model_id, seq)
        if row is None:
            return None
        if row.answer is not None:
            return Ready(kind=Kind(row.kind), body=row.answer)
        if row.status is MutationStatus.DONE:
            return Failed(error="its answer is no longer kept", category="server")
        return Failed(error=row.error, category=row.category or "unknown")

    async def line(self, model_id: str) -> list[RequestRow]:
        """A model's requests by number, without what they carry: all that may have to be done
        again, and some before."""
        return await asyncio.to_thread(self._line, model_id)

    def _line(self, model_id: str) -> list[RequestRow]:
        run = self._store.runs.find(run_of(model_id))
        committed = -1 if run is None else int(run.progress.get("request", -1))
        return self._store.requests.after(model_id, max(-1, committed - RECALLED))

    async def sizes(self, model_id: str) -> dict[int, int]:
        """Bytes of each request's body, of those that are kept."""
        return await asyncio.to_thread(self._store.requests.sizes, model_id)

    async def open_lines(self) -> list[str]:
        """Models that have requests which have not ended."""
        return await asyncio.to_thread(self._store.requests.owners_unended)
