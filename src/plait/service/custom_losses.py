"""Custom losses: those of the clients' sessions, kept before their ids are told.

``(session, number)`` is the idempotency key, and what the id is made of: asked again, the original.
A loss is its session's: for another one, another tenant's included, there is none of that id. It is
there for as long as gradients that name it may have to be made again, which is longer than its
session lives (``store.upkeep``).
"""

import asyncio
from collections.abc import Awaitable, Callable

from plait.core.custom_graphs import MAX_BYTES, dump
from plait.core.custom_losses import CustomLoss
from plait.core.errors import CapacityError, NotFound, RequestError
from plait.service.names import loss_id, read_loss_id
from plait.service.ports import Ready, Who
from plait.service.work import Codec, Kind, LossMade
from plait.store.store import Store
from plait.store.writer import GroupWriter

MAX_LOSSES = 64
"""Of one session: each is made once and used for a whole training."""
TENANT_LOSSES = 16 * MAX_LOSSES
"""Of one tenant, in all sessions that live or ended within a day: 128 MiB at most."""


class CustomLosses:
    """The losses of all sessions."""

    def __init__(
        self,
        store: Store,
        writer: GroupWriter,
        codec: Codec,
        *,
        check_session: Callable[[Who, str], Awaitable[None]],
        wall: Callable[[], float],
    ) -> None:
        """``check_session``: raises unless the session is the caller's and lives."""
        self._store, self._writer, self._codec = store, writer, codec
        self._check_session, self._wall = check_session, wall

    async def create(self, who: Who, session_id: str, number: int, loss: CustomLoss) -> str:
        """Keep a loss; the id of the request, and of the loss."""
        await self._check_session(who, session_id)
        stored = dump(loss)
        if len(stored) > MAX_BYTES:
            raise RequestError(
                f"custom loss {loss.name!r:.80} has {len(stored)} bytes: at most {MAX_BYTES}"
            )
        row = await self._writer.write(
            self._store.losses.create,
            session_id,
            number,
            tenant_id=who.tenant_id,
            loss=stored,
            most=MAX_LOSSES,
            most_of_tenant=TENANT_LOSSES,
            now=self._wall(),
        )
        if row is None:
            raise CapacityError(
                f"session {session_id} has {MAX_LOSSES} custom losses, or all your sessions of a "
                f"day have {TENANT_LOSSES}: use those that there are"
            )
        return loss_id(session_id, number)

    @staticmethod
    def owns(request_id: str) -> bool:
        """Whether it is an id of such a request."""
        return read_loss_id(request_id) is not None

    async def outcome(self, who: Who, request_id: str) -> Ready:
        """The answer, which is there from the beginning; NotFound."""
        at = read_loss_id(request_id)
        row = None if at is None else await asyncio.to_thread(self._store.losses.find, *at)
        if row is None or row.tenant_id != who.tenant_id:
            raise NotFound(f"there is no request {request_id[:120]}")
        made = LossMade(loss_id=request_id)
        return Ready(kind=Kind.CUSTOM_LOSS, body=self._codec.write(Kind.CUSTOM_LOSS, None, made))
