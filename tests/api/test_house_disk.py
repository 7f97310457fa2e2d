"""A disk without room under a house: what needs it fails with the reason, the rest goes on."""

import asyncio
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from service_support import ALICE, BOB, Client, adapter, datum, house

from plait.core.errors import Limited, StoreError
from plait.service.limits import TenantLimits
from plait.service.ports import Failed
from plait.service.work import Batch, CheckpointKind, Kind, SaveCheckpoint


def save(name: str) -> SaveCheckpoint:
    return SaveCheckpoint(name=name, kind=CheckpointKind.TRAINING)


def half_made(path: Path) -> list[Path]:
    return list(path.rglob("tmp-*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few pages."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk is not allowed here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


async def test_a_full_disk_stops_saving_and_nothing_else(
    tmp_path: Path, byte_model: Path, small_disk: Path
) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    (directory / "checkpoints").symlink_to(small_disk)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 60_000)
    async with house(directory, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        await one.gradient(1)
        step = await one.step()
        saving = await one.send(Kind.SAVE_WEIGHTS, save("a"))
        after = [await one.gradient(2), await one.step()]
        assert (await one.get(step)).version == 1
        refused = await one.end(saving)
        assert isinstance(refused, Failed)
        assert "free some space" in refused.error
        assert "\n" not in refused.error
        assert (await one.get(after[1])).version == 2, "training went on"
        assert half_made(small_disk) == []
        ballast.unlink()
        again = await one.send(Kind.SAVE_WEIGHTS, save("a"))
        assert (await one.get(again)).path.endswith("/weights/a"), "the name was not used up"


async def test_over_its_storage_a_tenant_saves_no_more_and_trains_on(
    tmp_path: Path, byte_model: Path
) -> None:
    async with house(tmp_path, byte_model) as h:
        one, two = await Client.open(h), await Client.open(h, BOB)
        await one.create(byte_model)
        await one.gradient(1)
        await one.step()
        size = (await one.get(await one.send(Kind.SAVE_WEIGHTS, save("a")))).size_bytes
        limits = TenantLimits(storage_bytes=2 * size - 1)
        await h.access.put_tenant(ALICE.tenant_id, limits=limits)
        refused = await one.end(await one.send(Kind.SAVE_WEIGHTS, save("b")))
        assert isinstance(refused, Failed)
        assert refused.category == "user"
        assert f"{size} of {2 * size - 1} bytes" in refused.error
        assert "delete some" in refused.error
        path = f"tinker://{one.model_id}/weights/a"
        with pytest.raises(Limited, match="delete some"):
            await h.models.copy(ALICE, path, ttl_s=None, session_id=None, model_seq=None)
        await one.gradient(2)
        assert (await one.get(await one.step())).version == 2, "its number was used up"
        over = replace(save("a"), overwrite=True)
        await one.get(await one.send(Kind.SAVE_WEIGHTS, over))
        await two.create(byte_model)
        await two.get(await two.send(Kind.SAVE_WEIGHTS, save("b")))
        await h.models.delete(ALICE, path)
        await one.get(await one.send(Kind.SAVE_WEIGHTS, save("b")))


@contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    """No file of this process (so not of its workers) may grow beyond ``n_bytes``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_request_that_the_store_has_no_room_for_is_refused_alone(
    tmp_path: Path, byte_model: Path
) -> None:
    async with house(tmp_path, byte_model) as h:
        one, two = await Client.open(h), await Client.open(h)
        for client in (one, two):
            await client.get(await client.create(byte_model))
        large = Batch(
            data=tuple(datum(n, 60) for n in range(3000)),
            loss="cross_entropy",
            config={},
            train=True,
        )
        used = (tmp_path / "plait.db-wal").stat().st_size
        with small_files(used + 600_000):
            asked = await asyncio.gather(
                one.send(Kind.FORWARD_BACKWARD, large, seq=1),
                two.gradient(1),
                return_exceptions=True,
            )
            assert isinstance(asked[0], StoreError)
            assert "the disk under" in str(asked[0])
            assert (await two.get(await two.step())).version == 1
        one.seq = 0
        await one.gradient(1)
        assert (await one.get(await one.step())).version == 1, "its number was not used up"


async def test_a_backup_put_back_elsewhere_goes_on(tmp_path: Path, byte_model: Path) -> None:
    """As the runbook has it: copied while the house is closed, opened under another name."""
    async with house(tmp_path / "state", byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        await one.gradient(1)
        await one.get(await one.step())
        await one.get(await one.send(Kind.SAVE_WEIGHTS, save("a")))
    shutil.copytree(tmp_path / "state", tmp_path / "backup", symlinks=True)
    async with house(tmp_path / "state", byte_model) as h:
        one.house = h
        await one.gradient(2)
        await one.get(await one.step())
        there = adapter(h, one.model_id)
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "backup").rename(tmp_path / "restored")
    async with house(tmp_path / "restored", byte_model) as h:
        one.house, one.seq = h, 3
        await one.gradient(2)
        assert (await one.get(await one.step())).version == 2
        assert adapter(h, one.model_id) == there
        path = f"tinker://{one.model_id}/weights/a"
        found = await h.models.checkpoint(one.who, path)
        assert found.name == "a"
