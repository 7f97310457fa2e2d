"""Store: one open database and its repositories.

Methods block for a disk write (milliseconds): an event loop calls them through ``GroupWriter``,
which keeps their order. ``now`` is always the caller's.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

from plait.core.errors import StoreError
from plait.store.checkpoints import Checkpoints
from plait.store.database import Database, sqlite_url
from plait.store.events import Events
from plait.store.jobs import Jobs
from plait.store.keys import Keys
from plait.store.losses import Losses
from plait.store.mutations import Mutations
from plait.store.requests import Requests
from plait.store.runs import Runs
from plait.store.samplers import Samplers
from plait.store.sessions import Sessions
from plait.store.tenants import Tenants
from plait.store.usage import Usage


class Store:
    """The durable truth of a launch. Thread-safe."""

    def __init__(self, url: str) -> None:
        """Open (create, migrate) the database at ``url``; StoreError says what to do."""
        self.database = Database(url)
        self.tenants = Tenants(self.database)
        self.keys = Keys(self.database)
        self.sessions = Sessions(self.database)
        self.requests = Requests(self.database)
        self.losses = Losses(self.database)
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
