"""Store: one open database and its repositories.

Methods block for a disk write (milliseconds): an event loop calls them through ``Writer``, which
keeps their order. ``now`` is always the caller's.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from plait.core.errors import CLOSED, StoreError
from plait.store.checkpoints import Checkpoints
from plait.store.database import Database, sqlite_url
from plait.store.events import Events
from plait.store.jobs import Jobs
from plait.store.keys import Keys
from plait.store.mutations import Mutations
from plait.store.requests import Requests
from plait.store.runs import Runs
from plait.store.samplers import Samplers
from plait.store.sessions import Sessions
from plait.store.tenants import Tenants
from plait.store.usage import Usage

P = ParamSpec("P")
R = TypeVar("R")


class Store:
    """The durable truth of a launch. Thread-safe."""

    def __init__(self, url: str) -> None:
        """Open (create, migrate) the database at ``url``; StoreError says what to do."""
        self.database = Database(url)
        self.tenants = Tenants(self.database)
        self.keys = Keys(self.database)
        self.sessions = Sessions(self.database)
        self.requests = Requests(self.database)
        self.samplers = Samplers(self.database)
        self.jobs = Jobs(self.database)
        self.runs = Runs(self.database)
        self.mutations = Mutations(self.database)
        self.checkpoints = Checkpoints(self.database)
        self.usage = Usage(self.database)
        self.events = Events(self.database)

    @classmethod
    def at(cls, path: str | Path) -> Self:
        """Open the SQLite file at ``path``, making its directory."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make {path.parent} ({error.strerror}): use another launch directory"
            ) from error
        return cls(sqlite_url(path))

    def close(self) -> None:
        """Close every connection."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Writer:
    """One thread that carries out store calls in the order in which they were made."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plait-store")
        self._closed = False

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``function`` on the thread and await its answer.

        Cancelling the caller does not undo a write that has begun: it ends on the thread.
        StoreError once that has ended.
        """
        if self._closed:
            raise StoreError(CLOSED)
        future = self._thread.submit(function, *args, **kwargs)
        return await asyncio.shield(asyncio.wrap_future(future))

    def close(self) -> None:
        """Wait for the calls in the queue and end the thread."""
        self._closed = True
        self._thread.shutdown(wait=True)
