"""Barrier: blocked calls: one batch, once every sample has asked or ended (JigsawRL: heavy tools).

Invariants: a batch leaves when each member waits in it; when the last member that does not wait
leaves; and ``patience_s`` after its first call whatever the others do. So no call waits for ever,
though a sample may end without a word. A member that has been answered counts again: it must ask
once more or leave.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from plait.core.errors import EnvironmentFailure

Answer = Callable[[Sequence[str]], Awaitable[Sequence[Any]]]
"""Queries to replies, in order; a reply may be an EnvironmentFailure, which is then raised."""


class Barrier:
    """Members of one batch after another."""

    def __init__(self, answer: Answer, *, patience_s: float) -> None:
        self._answer = answer
        self._patience_s = patience_s
        self._members: set[int] = set()
        self._next_member = 0
        self._asking: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.n_batches = 0
        self.n_impatient = 0
        """Batches that left without a member."""

    @property
    def idle(self) -> bool:
        """True when nobody is left and nothing is under way."""
        return not (self._members or self._asking or self._tasks)

    def join(self) -> int:
        """A new member; join before any member asks, or the batch leaves without it."""
        self._next_member += 1
        self._members.add(self._next_member)
        return self._next_member

    def leave(self, member: int) -> None:
        """The member will not ask again. Again: no effect."""
        self._members.discard(member)
        self._release_if_whole()

    async def ask(self, member: int, query: str) -> Any:
        """The reply to ``query``, when the batch has left and come back."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        self._asking[member] = query, reply
        if self._timer is None:
            self._timer = loop.call_later(self._patience_s, self._release)
        self._release_if_whole()
        try:
            return await reply
        except asyncio.CancelledError:  # the sample's own deadline has ended it
            if self._asking.get(member, (None, None))[1] is reply:
                del self._asking[member]
            self.leave(member)
            raise

    async def aclose(self) -> None:
        """Stop; calls that still wait fail."""
        if self._timer is not None:
            self._timer.cancel()
        for _, reply in self._asking.values():
            _settle(reply, EnvironmentFailure("the search environment was closed"))
        self._asking.clear()
        for task in tuple(self._tasks):
            task.cancel()
            await asyncio.wait([task])

    def _release_if_whole(self) -> None:
        if self._asking and self._members <= self._asking.keys():
            self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._asking = list(self._asking.values()), {}
        if not batch:
            return
        self.n_batches += 1
        self.n_impatient += len(batch) < len(self._members)
        task = asyncio.get_running_loop().create_task(self._reply(batch), name="blocked calls")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, batch: list[tuple[str, asyncio.Future[Any]]]) -> None:
        try:
            replies = await self._answer([query for query, _ in batch])
        except EnvironmentFailure as failure:
            replies = [failure] * len(batch)
        except asyncio.CancelledError:
            for _, reply in batch:
                _settle(reply, EnvironmentFailure("the search environment was closed"))
            raise
        for (_, reply), value in zip(batch, replies, strict=True):
            _settle(reply, value)


def _settle(reply: "asyncio.Future[Any]", value: Any) -> None:
    if reply.done():
        return
    if isinstance(value, EnvironmentFailure):
        # A fresh one for each: one exception raised in several tasks mixes their tracebacks.
        reply.set_exception(EnvironmentFailure(str(value)))
    else:
        reply.set_result(value)
