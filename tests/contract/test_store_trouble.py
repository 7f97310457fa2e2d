"""Trouble with the database: another writer, a full disk, a server that is gone."""

import asyncio
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from plait.core.errors import StoreError
from plait.core.ids import LOCAL_TENANT, RunId
from plait.store.database import sqlite_url
from plait.store.requests import Asked
from plait.store.store import Store
from plait.store.writer import GroupWriter

MODEL, RUN = "s:train:0", RunId("run-1")


def ask(store: Store, seq: int, body: bytes = b"x") -> Asked:
    return store.requests.accept(
        MODEL, seq, tenant_id=LOCAL_TENANT, session_id="s", kind="k", body=body, now=1.0
    )


@pytest.fixture
def store(store: Store) -> Store:
    store.sessions.open("s", tenant_id=LOCAL_TENANT, told={}, now=1.0)
    return store


@contextmanager
def other_writer(url: str) -> Iterator[threading.Event]:
    """Another writer, with a connection of its own, that holds the lock until it is let go."""
    holding, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with Store(url) as other, other.database.write():
            holding.set()
            let_go.wait(60)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        assert holding.wait(30)
        try:
            yield let_go
        finally:
            let_go.set()
            held.result(30)


def test_a_writer_waits_for_another(url: str, store: Store) -> None:
    with other_writer(url) as let_go, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, store, 1)
        with pytest.raises(TimeoutError):
            asking.result(0.5)
        assert store.requests.find(MODEL, 1) is None, "readers do not wait"
        let_go.set()
        assert asking.result(30).new


def test_a_writer_that_waits_too_long_says_what_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.store.database.BUSY_TIMEOUT_S", 0.2)
    with Store(url) as store:
        with other_writer(url), pytest.raises(StoreError, match="held by another process"):
            store.tenants.ensure(LOCAL_TENANT, now=1.0)
        assert store.tenants.ensure(LOCAL_TENANT, now=2.0).created_at == 2.0


async def test_a_group_that_finds_it_locked_fails_and_the_next_does_not(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.store.database.BUSY_TIMEOUT_S", 0.1)
    with Store(url) as store:
        store.sessions.open("s", tenant_id=LOCAL_TENANT, told={}, now=1.0)
        writer = GroupWriter(store.database)
        with other_writer(url):
            answers = await asyncio.gather(
                *(writer.write(ask, store, n) for n in range(3)), return_exceptions=True
            )
        assert all(isinstance(a, StoreError) and "held by" in str(a) for a in answers)
        assert (await writer.write(ask, store, 0)).new
        await asyncio.to_thread(writer.close)


OPENER = """
import sys
from plait.store.store import Store
sys.stdin.readline()
with Store(sys.argv[1]) as store:
    store.runs.create(sys.argv[2], tenant_id="local", name="x", spec={}, now=1.0)
"""


def test_processes_that_create_it_at_once(url: str) -> None:
    """None fails, whoever is first; each finds the newest schema."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, url, f"r{n}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        for n in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [p.returncode for p in processes] == [0, 0, 0, 0], errors
    with Store(url) as store:
        assert {r.run_id for r in store.runs.list()} == {f"r{n}" for n in range(4)}


def test_many_readers_at_once(store: Store) -> None:
    """More threads than the pool has connections: they queue, none is refused."""
    ask(store, 1)
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: store.requests.find(MODEL, 1), range(400)))
    assert all(row is not None for row in found)


def test_a_commit_is_on_the_disk_whatever_the_server_prefers(url: str) -> None:
    if url.startswith("sqlite"):
        wanted = {"PRAGMA synchronous": 2, "PRAGMA journal_mode": "wal", "PRAGMA foreign_keys": 1}
    else:
        url += "%20-csynchronous_commit%3Doff"
        wanted = {"SHOW synchronous_commit": "on", "SHOW lock_timeout": "10s"}
    with Store(url) as store, store.database.read() as connection:
        found = {ask: connection.exec_driver_sql(ask).scalar_one() for ask in wanted}
    assert found == wanted


@contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond ``n_bytes``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("cached_pages", [2000, 1], ids=["at the commit", "before the commit"])
async def test_a_full_disk_refuses_what_does_not_fit_and_nothing_else(
    tmp_path: Path, cached_pages: int
) -> None:
    """In one group: small requests and one that is larger than what is left. What does not fit in
    the cache is written to the log at once, and its failure ends the transaction then and there."""
    with Store.at(tmp_path / "s.db") as store:
        store.sessions.open("s", tenant_id=LOCAL_TENANT, told={}, now=1.0)
        store.runs.create(RUN, tenant_id=LOCAL_TENANT, name="r", spec={}, now=1.0)
        sa.event.listen(
            store.database._engine,
            "begin",
            lambda connection: connection.exec_driver_sql(f"PRAGMA cache_size={cached_pages}"),
        )
        writer = GroupWriter(store.database)
        room = (tmp_path / "s.db-wal").stat().st_size + 400_000
        with small_files(room):
            answers = await asyncio.gather(
                *(
                    writer.write(ask, store, n, b"x" * (1_000_000 if n == 3 else 10))
                    for n in range(8)
                ),
                return_exceptions=True,
            )
            refused = answers.pop(3)
            assert isinstance(refused, StoreError)
            assert "the disk under" in str(refused)
            assert "then resume" in str(refused)
            assert "\n" not in str(refused)
            assert all(isinstance(a, Asked) and a.new for a in answers)
            assert [r.seq for r in store.requests.after(MODEL)] == [0, 1, 2, 4, 5, 6, 7]
            for n in range(4):
                assert await writer.write(store.requests.finish, MODEL, n + 4, b"answer", now=2.0)
        assert (await writer.write(ask, store, 3, b"x" * 1_000_000)).new, "there is room again"
        store.database.check()
        await asyncio.to_thread(writer.close)


def test_the_check_at_a_start_leaves_indexes_to_the_thorough_one(tmp_path: Path) -> None:
    """Comparing each row with each index is what makes the thorough one slow on large stores."""
    with Store(sqlite_url(tmp_path / "s.db")) as store:
        with store.database.write() as connection:
            for statement in (
                "CREATE TABLE odd (a, b)",
                "CREATE INDEX by_a ON odd (a)",
                "INSERT INTO odd VALUES (1, 2)",
                "PRAGMA writable_schema=ON",
                "UPDATE sqlite_master SET sql='CREATE INDEX by_a ON odd (b)' WHERE name='by_a'",
                "PRAGMA writable_schema=RESET",
            ):
                connection.exec_driver_sql(statement)
        with store.database.read() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
        assert "by_a" in found
        store.database.check()
