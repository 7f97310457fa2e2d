"""GroupWriter: one thread that carries out store calls in the order in which they were made.

Group commit: the calls that wait at the moment share one transaction, hence one fsync, whoever
made them. Invariants:

- An answer is given when its call is durable, never before.
- A call is all or nothing: one that raises is undone whole and alone (its savepoint).
- If the database itself refuses something (a full disk, a lost server), the whole group has been
  undone, and each of its calls is carried out again by itself: one that is too large for the disk
  does not take the others with it. So a call in a group must have no effect but on the store.
- ``call`` is for everything else: it runs by itself, after what was asked before it.

No delay is added to fill a group: it fills while the one before it is being written.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

from plait.core.errors import CLOSED, StoreError
from plait.store.database import Database, of_database

P = ParamSpec("P")
R = TypeVar("R")

MAX_GROUP = 256
"""Calls that share a commit: bounds how long the first of them waits for the last."""


@dataclass(slots=True, kw_only=True)
class _Call:
    run: Callable[[], Any]
    grouped: bool
    future: "Future[Any]" = field(default_factory=Future)
    result: Any = None
    error: BaseException | None = None

    def attempt(self, database: Database) -> None:
        self.result, self.error = None, None
        try:
            if self.grouped:
                with database.write():
                    self.result = self.run()
            else:
                self.result = self.run()
        except BaseException as error:  # the recorder: it reaches whoever asked
            self.error = error

    def answer(self) -> None:
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class GroupWriter:
    """The one writer of a store. Safe to use from several event loops and threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = Lock()
        self.closing = Event()
        """Set when it takes no more calls."""
        self._thread = Thread(target=self._serve, name="plait-store", daemon=True)
        self._thread.start()

    async def write(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a repository's method in a group and await its answer, which is durable.

        Cancelling the caller does not undo a write: it ends on the thread. StoreError once closed.
        """
        return await self._ask(partial(function, *args, **kwargs), grouped=True)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``function`` by itself: its transactions are its own, and it may touch files."""
        return await self._ask(partial(function, *args, **kwargs), grouped=False)

    def close(self) -> None:
        """Carry out the calls in the queue and end the thread."""
        with self._lock:
            if not self.closing.is_set():
                self.closing.set()
                self._queue.put(None)
        self._thread.join()

    async def _ask(self, run: Callable[[], R], *, grouped: bool) -> R:
        call = _Call(run=run, grouped=grouped)
        with self._lock:
            if self.closing.is_set():
                raise StoreError(CLOSED)
            self._queue.put(call)
        return await asyncio.shield(asyncio.wrap_future(call.future))

    def _serve(self) -> None:
        following: _Call | None = None
        while (call := following or self._queue.get()) is not None:
            following = None
            group = [call]
            if call.grouped:
                following, ended = self._gather(group)
                self._commit(group)
                if ended:
                    break
            else:
                call.attempt(self._database)
                call.answer()

    def _gather(self, group: list[_Call]) -> tuple[_Call | None, bool]:
        """Add what waits, up to a call that wants to be by itself (answered), or the end."""
        while len(group) < MAX_GROUP:
            try:
                call = self._queue.get_nowait()
            except Empty:
                break
            if call is None:
                return None, True
            if not call.grouped:
                return call, False
            group.append(call)
        return None, False

    def _commit(self, group: list[_Call]) -> None:
        try:
            with self._database.write():
                for call in group:
                    call.attempt(self._database)
                    if of_database(call.error):
                        raise _Refused from call.error
        except _Refused:
            self._one_by_one(group)
        except StoreError as error:
            if _uncertain(error):
                for call in group:
                    call.error = error
            else:
                self._one_by_one(group)
        for call in group:
            call.answer()

    def _one_by_one(self, group: list[_Call]) -> None:
        for call in group:
            call.attempt(self._database)


class _Refused(Exception):
    """The database refused something, so that the transaction is no more."""


def _uncertain(error: StoreError) -> bool:
    """True if the connection broke at the commit: nobody knows which side of it."""
    cause = error.__cause__
    return isinstance(cause, DBAPIError) and cause.connection_invalidated
