"""Stores and versions that do not belong together: what is there is told, and stays."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from session_support import one_step, session

from plait.core.errors import StoreError
from plait.core.ids import RunId


async def test_rows_of_a_run_that_the_store_does_not_know_are_kept_too(
    tmp_path: Path, byte_model: Path
) -> None:
    metrics = tmp_path / "jobs" / "one" / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.touch()
    async with session(tmp_path, byte_model):
        pass
    metrics.write_text('{"step":1}\n')
    with pytest.raises(StoreError, match="missing or empty, it does not know run one: restore"):
        await session(tmp_path, byte_model).__aenter__()


@pytest.mark.parametrize("emptied", [False, True])
async def test_without_its_store_a_launch_is_refused_and_keeps_what_it_has(
    emptied: bool, tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path, byte_model) as s:
        await s.create_run("one")
    store = tmp_path / "store.db"
    kept = store.read_bytes()
    store.write_bytes(b"") if emptied else store.unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match="missing or empty, it does not know run one: restore"):
            await session(tmp_path, byte_model).__aenter__()
    assert (tmp_path / "jobs" / "one" / "versions" / "000000").is_dir()
    store.write_bytes(kept)
    async with session(tmp_path, byte_model) as s:
        assert (await s.create_run("one")).version == 0


async def test_an_older_store_is_refused_and_no_version_is_removed(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path, byte_model) as s:
        await s.create_run("one")
    old = (tmp_path / "store.db").read_bytes()
    async with session(tmp_path, byte_model) as s:
        run = await s.create_run("one")
        for step in (1, 2):
            await one_step(run, step)
    versions = tmp_path / "jobs" / "one" / "versions"
    before = sorted(p.name for p in versions.iterdir())
    (tmp_path / "store.db").write_bytes(old)
    async with session(tmp_path, byte_model) as s:
        with pytest.raises(
            StoreError, match="000002 is there and the store knows no version after 0"
        ):
            await s.create_run("one")
    assert sorted(p.name for p in versions.iterdir()) == before


async def test_a_store_that_is_older_by_one_version_is_told_from_a_crash(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path, byte_model) as s:
        await one_step(await s.create_run("one"), 1)
    old = (tmp_path / "store.db").read_bytes()
    async with session(tmp_path, byte_model) as s:
        await one_step(await s.create_run("one"), 2)
    root = tmp_path / "jobs" / "one"
    before = sorted(p.name for p in (root / "versions").iterdir())
    (tmp_path / "store.db").write_bytes(old)
    async with session(tmp_path, byte_model) as s:
        with pytest.raises(StoreError, match="committed and the store ends at 1: it is an older"):
            await s.create_run("one")
    assert sorted(p.name for p in (root / "versions").iterdir()) == before
    (root / "committed").unlink()  # as the message says: to go on from the older one after all
    async with session(tmp_path, byte_model) as s:
        run = await s.create_run("one")
        assert run.version == 1
        assert "000002" not in [p.name for p in (root / "versions").iterdir()]
        await one_step(run, 2)
        assert (root / "committed").read_text() == "2\n"


async def test_versions_that_are_older_than_the_store_are_refused(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path, byte_model) as s:
        await one_step(await s.create_run("one"), 1)
    root = tmp_path / "jobs" / "one"
    shutil.copytree(root, tmp_path / "old")
    async with session(tmp_path, byte_model) as s:
        await one_step(await s.create_run("one"), 2)
    shutil.rmtree(root)
    (tmp_path / "old").rename(root)
    async with session(tmp_path, byte_model) as s:
        with pytest.raises(StoreError, match="000002 is gone: put it back"):
            await s.create_run("one")


async def test_all_of_an_older_moment_goes_on_from_there(tmp_path: Path, byte_model: Path) -> None:
    async with session(tmp_path, byte_model) as s:
        await one_step(await s.create_run("one"), 1)
    shutil.copytree(tmp_path, copy := tmp_path.with_name("older"))
    async with session(tmp_path, byte_model) as s:
        await one_step(await s.create_run("one"), 2)
    async with session(copy, byte_model) as s:
        run = await s.create_run("one")
        assert run.version == 1
        await one_step(run, 2)


async def test_a_store_whose_pages_do_not_belong_together_is_refused(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path, byte_model) as s:
        await one_step(await s.create_run("one"), 1)
    store = tmp_path / "store.db"
    pages = bytearray(store.read_bytes())
    with sqlite3.connect(store) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'pk_mutations' OR name = "
            "'sqlite_autoindex_mutations_1'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    pages[(page - 1) * size : page * size] = bytes((13,)) + bytes(size - 1)
    store.write_bytes(pages)
    with pytest.raises(StoreError, match=r"is damaged .*restore it from a copy"):
        async with session(tmp_path, byte_model):
            pass


async def test_a_version_that_is_gone_from_a_copy_is_named_there(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path / "first", byte_model) as s:
        await s.create_run("one")
    copy = tmp_path / "first" / ".." / "copy"
    shutil.copytree(tmp_path / "first", copy)
    version = copy / "jobs" / "one" / "versions" / "000000"
    version.rename(tmp_path / "away")
    async with session(copy, byte_model) as s:
        with pytest.raises(StoreError, match="is gone: put it back") as found:
            await s.create_run("one")
        assert str(found.value).startswith(str(version.resolve()))
    (tmp_path / "away").rename(version)
    async with session(copy, byte_model) as s:
        run = await s.create_run("one")
        await one_step(run, 1)
        paths = [row.path for row in s.store.mutations.versions(RunId("one"))]
        assert paths == ["jobs/one/versions/000000", "jobs/one/versions/000001"]
