"""Database: the connection, its durability settings, its migrations, its errors.

Invariants: a transaction that returned is on the disk (SQLite: WAL with ``synchronous=FULL``); one
that raised left nothing behind. A write transaction takes the write lock when it begins, so that
two writers queue for the lock instead of failing half-way ("database is locked"). The schema is
brought to the newest revision when the database is opened.

URL-agnostic: what is SQLite's alone stands in ``_tune_sqlite``. Callers keep transactions short;
no transaction spans engine work.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, make_url
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
        try:
            self.url = make_url(url)
            self._engine = _engine(url)
        except (ArgumentError, ImportError) as error:
            raise StoreError(f"cannot open the store {url!r}: {error}") from error
        self.where = self.url.database or self.url.render_as_string(hide_password=True)
        try:
            self._migrate()
        except BaseException:
            self._engine.dispose()
            raise

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: durable when the block has ended, undone if it raises."""
        with self._errors(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction: one consistent view."""
        with self._errors(), self._engine.begin() as connection:
            yield connection

    def check(self) -> None:
        """StoreError if the file's pages do not belong together: a copy was put back beside the
        ``-wal`` file of another one, say. Milliseconds for a launch's store."""
        if self.url.get_backend_name() == "sqlite":
            with self.read() as connection:
                found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
            if found != "ok":
                raise StoreError(_advice(self.where, f"malformed: {' '.join(found.split())}"))

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @property
    def _writer(self) -> Engine:
        return self._engine.execution_options(plait_write=True)

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


def sqlite_url(path: str | Path) -> str:
    """URL of a SQLite file."""
    return f"sqlite:///{Path(path).absolute()}"


def _engine(url: str) -> Engine:
    engine = sa.create_engine(url, json_serializer=dumps, json_deserializer=json.loads)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _tune_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
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


def _advice(where: str, cause: str) -> str:
    """What the database said, and what to do about it."""
    text = cause.lower()
    if "disk is full" in text or "no space" in text:
        return f"the disk under {where} is full: free some space, then resume"
    if "readonly" in text or "read-only" in text or "unable to open" in text:
        return (
            f"{where} cannot be written ({cause}): check that its directory exists and is writable"
        )
    if "locked" in text:
        return f"{where} is held by another process: end that one or use another launch directory"
    if "malformed" in text or "not a database" in text:
        return (
            f"{where} is damaged ({cause}): restore it from a copy or start a new launch directory"
        )
    if "disk i/o" in text:
        return f"the disk under {where} failed ({cause}): check it, then resume"
    return f"the store {where} refused: {cause}"
