"""Opening, migrating, and what a refusing disk says."""

import resource
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from plait.core.errors import StoreError
from plait.core.ids import LOCAL_TENANT, RunId
from plait.store.database import Database, sqlite_url
from plait.store.schema import metadata
from plait.store.store import Store
from plait.store.tenants import ensure_tenant

RUN = RunId("r")


def test_migrations_build_what_the_schema_says(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "s.db"))
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    database.close()


def test_a_commit_is_on_the_disk_and_wal_is_on(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "s.db"))
    with database.read() as connection:
        pragma = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragma == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 10_000,
    }
    database.close()


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with Store.at(tmp_path / "s.db") as store:
        with suppress(ZeroDivisionError), store.database.write() as connection:
            ensure_tenant(connection, LOCAL_TENANT, 1.0)
            raise ZeroDivisionError
        with store.database.read() as connection:
            assert connection.execute(sa.text("SELECT count(*) FROM tenants")).scalar_one() == 0


def test_stores_are_opened_side_by_side(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(Store.at, [tmp_path / f"{n}.db" for n in range(8)]))
    for store in stores:
        assert store.runs.list() == []
        store.close()


def test_newer_store_is_refused(tmp_path: Path) -> None:
    Store.at(tmp_path / "s.db").close()
    raw = sqlite3.connect(tmp_path / "s.db")
    with raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with pytest.raises(StoreError, match="another version of plait"):
        Store.at(tmp_path / "s.db")


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_text("hello " * 1000)
    with pytest.raises(StoreError, match="damaged"):
        Store.at(tmp_path / "s.db")


@pytest.mark.parametrize(
    "url",
    ["nonsense:secret@there", "mysql://me:secret@there/x", "postgresql://me:secret@there:x/y"],
)
def test_bad_url_is_refused_and_its_password_is_not_told(url: str) -> None:
    with pytest.raises(StoreError, match="cannot open the store") as refused:
        Store(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_a_server_that_is_not_there_is_named_without_its_password(scheme: str) -> None:
    with pytest.raises(StoreError, match="cannot be reached") as refused:
        Store(f"{scheme}://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="another launch directory"):
        Store.at(tmp_path / "file" / "s.db")
    with pytest.raises(StoreError, match="exists and is writable"):
        Store(sqlite_url(tmp_path / "missing" / "s.db"))


def test_read_only_store_says_so(tmp_path: Path) -> None:
    Store.at(tmp_path / "s.db").close()
    with Store.at(tmp_path / "s.db") as store:
        with store.database.read() as connection:
            connection.exec_driver_sql("PRAGMA query_only=1")
        with pytest.raises(StoreError, match="cannot be written"):
            store.runs.create(RUN, tenant_id=LOCAL_TENANT, name="r", spec={}, now=1.0)


FILL = """
import sys
from plait.core.errors import StoreError
from plait.store.store import Store
from plait.store.tenants import ensure_tenant

with Store(sys.argv[1]) as store:
    store.runs.create("r", tenant_id="local", name="r", spec={}, now=1.0)
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(1, 10_000):
        try:
            store.mutations.accept("r", n, "create", now=1.0)
            store.mutations.finish("r", n, result={"x": "y" * 3000}, now=1.0)
        except StoreError as error:
            print(n, error, sep="|", flush=True)
            break
"""


def test_full_disk_says_what_to_do_and_loses_nothing(tmp_path: Path) -> None:
    """The disk is filled by a limit on the size of the child's files."""
    path = tmp_path / "s.db"
    process = subprocess.Popen(
        [sys.executable, "-c", FILL, sqlite_url(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (300_000, 300_000))
    output, _ = process.communicate("\n", timeout=60)
    number, message = output.strip().split("|")
    assert "the disk under" in message
    assert "resume" in message
    with Store.at(path) as store:
        log = store.mutations.since(RUN, 0)
        assert len(log) in (int(number), int(number) - 1)
        assert all(len(m.result["x"]) == 3000 for m in log[:-1])


def test_locked_store_names_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.store.database.BUSY_TIMEOUT_S", 0.05)
    with Store.at(tmp_path / "s.db") as store:
        raw = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="held by another process"):
            store.runs.create(RUN, tenant_id=LOCAL_TENANT, name="r", spec={}, now=1.0)
        raw.execute("ROLLBACK")
        raw.close()
