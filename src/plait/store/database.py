"""Database: the connection, its durability settings, its migrations, its errors.

Invariants, on SQLite and on PostgreSQL:

- A transaction that returned is on the disk (``synchronous=FULL``, ``synchronous_commit=on``); one
  that raised left nothing behind.
- One writer at a time: a write transaction takes the write lock when it begins (PostgreSQL: an
  advisory one), so that two writers queue for it instead of failing half-way ("database is
  locked") or deciding on what the other is about to change.
- A write inside a write of the same thread is a part of it (a savepoint): undone alone if it
  raises, durable when the outermost has ended. A read inside a write sees what that wrote.
- The schema is brought to the newest revision when the database is opened, in one transaction.

Callers keep transactions short; no transaction spans engine work.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock, local
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from plait.core.errors import StoreError
from plait.obs.jsonl import dumps

BUSY_TIMEOUT_S = 10.0
"""How long a writer queues for SQLite's lock: far above a commit, far below a hang."""

MIGRATIONS = Path(__file__).parent / "migrations"

_MIGRATION = Lock()
"""Alembic keeps its context in module globals: one migration at a time in a process."""


class Database:
    """One database, migrated and ready. Thread-safe: each transaction has its own connection."""

    def __init__(self, url: str) -> None:
        """Open ``url``, creating and migrating what is missing; StoreError if it cannot be."""
        self._local = local()
        try:
            self.url = _with_driver(make_url(url))
            self._engine = _engine(self.url)
            self._writer = self._engine.execution_options(plait_write=True)
            self._reader = self._engine
            if self.backend == "postgresql":
                self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ")
        except ImportError as error:
            raise StoreError(
                f"this database needs a driver ({error}): install plait[postgres]"
            ) from error
        except (ArgumentError, ValueError) as error:  # without the URL: there may be a password
            raise StoreError(
                f"cannot open the store ({error}): "
                "give sqlite:////PATH or postgresql://USER@HOST/NAME"
            ) from error
        self.where = self.url.render_as_string(hide_password=True)
        if self.backend == "sqlite":
            self.where = self.url.database or self.where
        try:
            self._migrate()
        except BaseException:
            self._engine.dispose()
            raise

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: durable when the outermost block has ended, undone if it raises."""
        outer = self._writing
        with self._errors():
            if outer is not None:
                with self._savepoint(outer):
                    yield outer
                return
            with self._writer.begin() as connection:
                self._local.writing = connection
                try:
                    yield connection
                finally:
                    self._local.writing = None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction: one consistent view."""
        outer = self._writing
        with self._errors():
            if outer is not None:
                yield outer
                return
            with self._reader.begin() as connection:
                yield connection

    @contextmanager
    def _savepoint(self, outer: Connection) -> Iterator[None]:
        """By hand: SQLAlchemy compiles each of its own anew, which costs more than a query."""
        self._local.depth = depth = getattr(self._local, "depth", 0) + 1
        try:
            outer.exec_driver_sql(f"SAVEPOINT plait_{depth}")
            try:
                yield
            except BaseException as error:
                # What the database itself refused may have ended the whole transaction: that must
                # not hide why.
                with suppress(SQLAlchemyError) if of_database(error) else nullcontext():
                    outer.exec_driver_sql(f"ROLLBACK TO SAVEPOINT plait_{depth}")
                    outer.exec_driver_sql(f"RELEASE SAVEPOINT plait_{depth}")
                raise
            outer.exec_driver_sql(f"RELEASE SAVEPOINT plait_{depth}")
        finally:
            self._local.depth = depth - 1

    @property
    def _writing(self) -> Connection | None:
        """This thread's open write transaction."""
        return getattr(self._local, "writing", None)

    def check(self) -> None:
        """StoreError if the file's pages do not belong together: a copy was put back beside the
        ``-wal`` file of another one, say. It reads each page once, milliseconds for a launch's
        store, and does not see an index that disagrees with its table, nor rows that are twice
        under a unique key: ``PRAGMA integrity_check`` does, and takes longer."""
        if self.backend == "sqlite":
            with self.read() as connection:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if found != "ok":
                raise StoreError(_advice(self.where, f"malformed: {' '.join(found.split())}"))

    @property
    def backend(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self.url.get_backend_name()

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _migrate(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with _MIGRATION, self.write() as connection:
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as error:
                raise StoreError(
                    f"{self.where} was written by another version of plait ({error}): "
                    "use that version or start a new launch directory"
                ) from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise StoreError(_advice(self.where, str(error.orig))) from error
        except SQLAlchemyError as error:
            raise StoreError(f"the store {self.where} failed: {error}") from error
        except (OverflowError, UnicodeError) as error:  # drivers', before the database sees it
            raise StoreError(f"the store cannot hold what it was given: {error}") from error


def of_database(error: BaseException | None) -> bool:
    """True if the database itself refused something: its transaction cannot be relied on."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    return isinstance(cause, SQLAlchemyError)


def sqlite_url(path: str | Path) -> str:
    """URL of a SQLite file."""
    return f"sqlite:///{Path(path).absolute()}"


def _with_driver(url: URL) -> URL:
    """PostgreSQL's URLs, as people write them, with the driver that is installed."""
    plain = url.drivername in ("postgres", "postgresql")
    return url.set(drivername="postgresql+psycopg") if plain else url


def _engine(url: URL) -> Engine:
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise ArgumentError(f"{backend} is neither sqlite nor postgresql+psycopg")
    engine = sa.create_engine(
        url,
        json_serializer=dumps,
        json_deserializer=json.loads,
        # A server may have been restarted since a connection was used last.
        pool_pre_ping=backend != "sqlite",
    )
    tune, begin = _TUNING[backend]
    event.listen(engine, "connect", tune)
    event.listen(engine, "begin", begin)
    return engine


def _tune_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late: after the first read
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("plait_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _tune_postgresql(connection: Any, _record: object) -> None:
    connection.autocommit = True
    connection.execute("SET synchronous_commit = on")
    connection.execute(f"SET lock_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    connection.autocommit = False


def _begin_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get("plait_write", False):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITE_LOCK})")


_WRITE_LOCK = 7_046_029_254
"""Key of the advisory lock that makes PostgreSQL's writers queue; any number that nobody else in
the same database uses."""

_TUNING = {
    "sqlite": (_tune_sqlite, _begin_sqlite),
    "postgresql": (_tune_postgresql, _begin_postgresql),
}


def _advice(where: str, cause: str) -> str:
    """What the database said, and what to do about it."""
    cause = " ".join(cause.split())
    text = cause.lower()
    if "disk is full" in text or "no space" in text:
        return f"the disk under {where} is full: free some space, then resume"
    if "readonly" in text or "read-only" in text or "unable to open" in text:
        return (
            f"{where} cannot be written ({cause}): check that its directory exists and is writable"
        )
    if "connect" in text or "server closed" in text or "shutting down" in text:
        return f"the database server of {where} cannot be reached ({cause}): start it, then resume"
    if "locked" in text or "lock timeout" in text:
        return f"{where} is held by another process: end that one or use another launch directory"
    if "malformed" in text or "not a database" in text:
        return (
            f"{where} is damaged ({cause}): restore it from a copy or start a new launch directory"
        )
    if "disk i/o" in text:
        return f"the disk under {where} failed ({cause}): check it, then resume"
    return f"the store {where} refused: {cause}"
