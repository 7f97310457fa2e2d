"""Adapters of outside samplers: their files stay as long as they are loaded, and no longer."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from plait.core.ids import OpId, RunId
from plait.runtime.samples import Samples
from plait.service.adapters import Adapters
from plait.service.snapshots import FILES, Snapshots

SOON_S = 30.0
A, B = (RunId("a"), 1), (RunId("b"), 1)


class Workers:
    """Remember what is loaded."""

    def __init__(self) -> None:
        self.loaded: dict[RunId, str] = {}

    async def load(self, run_id: RunId, version: int, path: str, op_id: OpId) -> None:
        self.loaded[run_id] = path

    def drop_version(self, run_id: RunId, version: int) -> None:
        self.loaded.pop(run_id, None)


@pytest.fixture
def source(tmp_path: Path) -> str:
    directory = tmp_path / "000001"
    directory.mkdir()
    for name in FILES:
        (directory / name).write_text("x")
    return str(directory)


def made(tmp_path: Path, n: int) -> tuple[Adapters, Workers, Path]:
    workers, pins = Workers(), tmp_path / "pins"
    return Adapters(cast(Samples, cast(Any, workers)), Snapshots(pins), n), workers, pins


async def test_files_stay_as_long_as_it_is_loaded(tmp_path: Path, source: str) -> None:
    adapters, workers, pins = made(tmp_path, 1)
    await adapters.slots.acquire(A, source)
    (pinned,) = pins.iterdir()
    assert workers.loaded == {A[0]: str(pinned)}
    adapters.slots.release(A)
    await adapters.slots.acquire(B, source)
    (other,) = pins.iterdir()
    assert other != pinned
    assert workers.loaded == {B[0]: str(other)}


async def test_what_gives_way_while_its_files_are_taken_leaves_none(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters, workers, pins = made(tmp_path, 1)
    began, go_on, taken = threading.Event(), threading.Event(), threading.Event()
    take = Snapshots.take

    def slowly(self: Snapshots, *args: Any, **kwargs: Any) -> Path:
        if began.is_set():
            return take(self, *args, **kwargs)
        began.set()
        assert go_on.wait(SOON_S)
        try:
            return take(self, *args, **kwargs)
        finally:
            taken.set()

    monkeypatch.setattr(Snapshots, "take", slowly)
    adapters.slots.prepare(A, source)
    assert await asyncio.to_thread(began.wait, SOON_S)
    async with asyncio.timeout(SOON_S):
        await adapters.slots.acquire(B, source)
        go_on.set()
        assert await asyncio.to_thread(taken.wait, SOON_S)
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*under_way, return_exceptions=True)
    assert [str(p) for p in pins.iterdir()] == [workers.loaded[B[0]]]
