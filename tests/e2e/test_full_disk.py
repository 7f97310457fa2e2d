"""A disk that fills up under running jobs: they end with the reason, and go on when it has room."""

import asyncio
import contextlib
import os
import resource
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from launches import (
    EvenSource,
    final_state,
    job,
    launch,
    rows,
    run_jobs,
    samples,
    until_step,
    worker_pids,
)
from programs import assert_nobody_left

from plait.core.errors import StoreError
from plait.core.runs import Stage
from plait.jobs.launch import Outcome
from plait.jobs.spec import JobSpec

pytestmark = pytest.mark.e2e

N_STEPS = 12


@pytest.fixture(scope="module")
def specs(byte_model: Path) -> list[JobSpec]:
    return [
        job(name, byte_model, steps=N_STEPS, evaluation={"every": 5, "items": 2})
        for name in ("a", "b")
    ]


@pytest.fixture(scope="module")
def calm(specs: list[JobSpec], byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("calm")
    asyncio.run(run_jobs(directory, byte_model, specs))
    return directory


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@contextlib.contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    """No file of this process, or of the workers that it starts, may grow beyond ``n_bytes``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_failed_for_the_disk(outcomes: dict[str, Outcome]) -> None:
    for outcome in outcomes.values():
        assert outcome.stage is Stage.FAILED, outcome
        assert "\n" not in outcome.reason
        assert "resume" in outcome.reason, "what to do"


def assert_same(directory: Path, calm: Path) -> None:
    for name in ("a", "b"):
        for read in (rows, samples, final_state):
            assert read(directory, name) == read(calm, name)


async def test_a_disk_without_room(
    specs: list[JobSpec], calm: Path, byte_model: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory, ballast = disk / "launch", disk / "ballast"
        async with launch(directory, byte_model) as running:
            for spec in specs:
                running.add_job(spec, EvenSource())
            await until_step(running, "b", 3)
            async with keep_full(ballast), asyncio.timeout(60):
                outcomes = await running.wait_all()
        assert_failed_for_the_disk(outcomes)
        assert any("free" in o.reason for o in outcomes.values())
        assert_nobody_left(directory)
        ballast.unlink()
        again = await run_jobs(directory, byte_model, specs)
        assert {o.reason for o in again.values()} == {f"finished {N_STEPS} steps"}
        assert_same(directory, calm)


async def test_one_jobs_disk_without_room(
    specs: list[JobSpec], calm: Path, byte_model: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "launch"
    with small_disk(tmp_path / "disk") as disk:
        (directory / "jobs" / "a").mkdir(parents=True)
        (directory / "jobs" / "a" / "versions").symlink_to(disk)
        async with launch(directory, byte_model) as running:
            for spec in specs:
                running.add_job(spec, EvenSource())
            await until_step(running, "a", 3)
            async with keep_full(disk / "ballast"), asyncio.timeout(60):
                outcomes = await running.wait_all()
        assert outcomes["b"].stage is Stage.DONE, "the neighbour has a disk of its own"
        assert "free" in outcomes["a"].reason
        assert_failed_for_the_disk({"a": outcomes["a"]})
        (disk / "ballast").unlink()
        again = await run_jobs(directory, byte_model, specs)
        assert again["a"].stage is Stage.DONE
        assert_same(directory, calm)


@pytest.mark.parametrize("n_bytes", [50_000, 300_000, 600_000])
async def test_files_that_may_not_grow(
    n_bytes: int, specs: list[JobSpec], calm: Path, byte_model: Path, tmp_path: Path
) -> None:
    outcomes: dict[str, Outcome] = {}
    # StoreError: there is no room for the launch itself.
    with small_files(n_bytes), contextlib.suppress(StoreError):
        async with asyncio.timeout(60):
            outcomes = await run_jobs(tmp_path, byte_model, specs)
    assert_failed_for_the_disk(outcomes)
    if worker_pids(tmp_path):
        assert_nobody_left(tmp_path)
    again = await run_jobs(tmp_path, byte_model, specs)
    assert {o.reason for o in again.values()} == {f"finished {N_STEPS} steps"}
    assert_same(tmp_path, calm)


async def test_a_directory_that_cannot_be_made(byte_model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="directory"):
        await launch(tmp_path / "file" / "launch", byte_model).__aenter__()


@contextlib.asynccontextmanager
async def keep_full(ballast: Path) -> AsyncIterator[None]:
    """Take what room is left to the last byte, also what old versions give back."""

    async def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            while True:
                for size in (1 << 16, 1 << 12, 1):
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(b"x" * size)
                await asyncio.sleep(0.001)

    filling = asyncio.create_task(fill())
    try:
        yield
    finally:
        filling.cancel()
