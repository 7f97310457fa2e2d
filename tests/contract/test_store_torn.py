"""Power that goes in the middle of a write: the log ends in a torn record, or in rubbish.

Whatever is cut off the end of the log, the store opens, holds the transactions whose records are
whole, in order and without a gap, and takes new ones. What was acknowledged is never among what can
be cut: its record was flushed before.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import postgres as pg
import pytest

from plait.core.errors import StoreError
from plait.core.ids import LOCAL_TENANT
from plait.store.database import sqlite_url
from plait.store.store import Store
from plait.store.writer import GroupWriter

MODEL, N = "s:train:0", 12

CLIENT = """
import asyncio, sys
from plait.store.store import Store
from plait.store.writer import GroupWriter

async def main(url, n):
    store = Store(url)
    store.sessions.open("s", tenant_id="local", told={}, now=1.0)
    with store.database.read() as connection:
        if store.database.backend == "sqlite":
            connection.connection.commit()
            connection.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    writer = GroupWriter(store.database)
    for seq in range(n):
        await writer.write(
            store.requests.accept, "s:train:0", seq, tenant_id="local", session_id="s",
            kind="k", body=b"x" * 5000 * (seq % 3), now=1.0)
        print(seq, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def write_and_kill(url: str, n: int) -> None:
    """``n`` transactions by a process that is killed when the last is acknowledged."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, url, str(n)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert process.stdout is not None
    with process.stdout as output:
        for seq in range(n):
            assert output.readline() == f"{seq}\n"
        process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)


def check(url: str, n_whole: int) -> None:
    with Store(url) as store:
        store.database.check()
        rows = store.requests.after(MODEL)
        assert [r.seq for r in rows] == list(range(n_whole))
        for row in rows:
            assert store.requests.body(MODEL, row.seq) == b"x" * 5000 * (row.seq % 3)
        assert store.requests.accept(
            MODEL, n_whole, tenant_id=LOCAL_TENANT, session_id="s", kind="k", body=b"", now=2.0
        ).new


def commits_of_wal(wal: bytes) -> list[int]:
    """Where each transaction of a SQLite log ends (file format, section 4.1)."""
    page = int.from_bytes(wal[8:12], "big")
    ends, at = [], 32
    while at + 24 + page <= len(wal):
        if int.from_bytes(wal[at + 4 : at + 8], "big"):  # a commit: the size of the database
            ends.append(at + 24 + page)
        at += 24 + page
    return ends


def cut(log: bytes, at: int) -> bytes:
    return log[:at]


def zeroed(log: bytes, at: int) -> bytes:
    return log[:at] + bytes(len(log) - at)


def rubbish(log: bytes, at: int) -> bytes:
    return log[:at] + bytes((b * 7 + 13) % 256 for b in log[at:])


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("killed")
    write_and_kill(sqlite_url(directory / "s.db"), N)
    return directory


@pytest.mark.parametrize("tear", [cut, zeroed, rubbish])
def test_sqlite_keeps_every_transaction_whose_record_is_whole(
    killed: Path, tmp_path: Path, tear: Callable[[bytes, int], bytes]
) -> None:
    wal = (killed / "s.db-wal").read_bytes()
    ends = commits_of_wal(wal)
    assert len(ends) == N, "one transaction per commit, none of them in the database file yet"
    starts = [32, *ends[:-1]]
    offsets = {0, 10, 31, 32}
    for start, end in zip(starts, ends, strict=True):
        offsets |= {start + 1, start + 24, (start + end) // 2, end - 1, end}
    for at in sorted(offsets):
        shutil.copy(killed / "s.db", tmp_path / "s.db")
        (tmp_path / "s.db-wal").write_bytes(tear(wal, at))
        (tmp_path / "s.db-shm").unlink(missing_ok=True)
        check(sqlite_url(tmp_path / "s.db"), sum(end <= at for end in ends))
        for left in tmp_path.iterdir():
            left.unlink()


@pytest.mark.parametrize("tear", [zeroed, rubbish])
def test_postgresql_keeps_every_transaction_whose_record_is_whole(
    tear: Callable[[bytes, int], bytes],
) -> None:
    if not pg.BINARIES:
        pytest.skip(pg.ABSENT)
    server = pg.PostgresServer()
    try:
        server.start()
        write_and_kill(server.url("public"), N)
        server.kill()
        segment, records = last_commit(server)
        start, end = records
        log = segment.read_bytes()
        segment.write_bytes(tear(log, (start + end) // 2))
        server.start()
        check(server.url("public"), N - 1)
    finally:
        server.close()


def last_commit(server: pg.PostgresServer) -> tuple[Path, tuple[int, int]]:
    """The log's file, and where in it the record of the last commit begins and ends."""
    segment = max(p for p in (server.data / "pg_wal").iterdir() if len(p.name) == 24)
    dump = subprocess.run(
        [str(pg.BINARIES[-1].with_name("pg_waldump")), str(segment)],
        capture_output=True,
        text=True,
    ).stdout
    found = re.findall(r"rec/tot\):\s*\d+/\s*(\d+),.*lsn: \w+/(\w+),.*desc: COMMIT", dump)
    size, lsn = int(found[-1][0]), int(found[-1][1], 16) % segment.stat().st_size
    return segment, (lsn, lsn + size)


def test_a_killed_postgresql_server_has_all_that_was_acknowledged() -> None:
    """And the store that was open goes on with the server that was started again."""
    if not pg.BINARIES:
        pytest.skip(pg.ABSENT)
    server = pg.PostgresServer()
    try:
        server.start()
        write_and_kill(server.url("public"), N)
        with Store(server.url("public")) as store:
            port = server.port
            server.kill()
            with pytest.raises(StoreError, match="cannot be reached"):
                store.requests.after(MODEL)
            server.start(port=port)
            assert [row.seq for row in store.requests.after(MODEL)] == list(range(N))
        check(server.url("public"), N)
    finally:
        server.close()


async def test_a_writer_goes_on_with_a_server_that_was_started_again() -> None:
    if not pg.BINARIES:
        pytest.skip(pg.ABSENT)
    server = await asyncio.to_thread(pg.PostgresServer)
    try:
        await asyncio.to_thread(server.start)
        with Store(server.url("public")) as store:
            store.sessions.open("s", tenant_id=LOCAL_TENANT, told={}, now=1.0)
            writer = GroupWriter(store.database)

            def ask(seq: int) -> bool:
                return store.requests.accept(
                    MODEL,
                    seq,
                    tenant_id=LOCAL_TENANT,
                    session_id="s",
                    kind="k",
                    body=b"",
                    now=1.0,
                ).new

            def dies() -> None:
                server.kill()

            assert await writer.write(ask, 0)
            answers = await asyncio.gather(
                writer.write(ask, 1),
                writer.write(dies),
                writer.write(ask, 2),
                return_exceptions=True,
            )
            assert isinstance(answers[2], StoreError)
            await asyncio.to_thread(server.start, server.port)
            kept = [r.seq for r in store.requests.after(MODEL)]
            assert kept == ([0, 1] if answers[0] is True else [0])
            assert await writer.write(ask, 2)
            await asyncio.to_thread(writer.close)
    finally:
        await asyncio.to_thread(server.close)
