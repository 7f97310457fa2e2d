"""Shares: cores are lent between forward steps and never oversubscribed."""

from pathlib import Path

import pytest

from plait.core.errors import StoreError
from plait.runtime.shares import Shares


def table(tmp_path: Path, n: int, cores: int) -> list[Shares]:
    path = tmp_path / "shares"
    Shares.create(path, n)
    return [Shares(path, slot=i, cores=cores) for i in range(n)]


def test_a_lone_worker_has_the_machine_and_gives_half_back_when_another_comes(
    tmp_path: Path,
) -> None:
    a, b = table(tmp_path, 2, 2)
    assert a.claim() == 2
    assert b.claim() == 1
    assert a.claim() == 1
    b.release()
    assert a.claim() == 2


def test_without_elasticity_every_worker_keeps_to_its_part(tmp_path: Path) -> None:
    path = tmp_path / "shares"
    Shares.create(path, 2)
    assert [Shares(path, slot=i, cores=3, elastic=False).claim() for i in range(2)] == [2, 1]
    Shares(path, slot=1, cores=3, elastic=False).release()
    assert Shares(path, slot=0, cores=3, elastic=False).claim() == 2


def test_busy_workers_together_never_take_more_than_the_cores(tmp_path: Path) -> None:
    workers = table(tmp_path, 3, 8)
    for w in workers:
        w.claim()
    assert sum(w.claim() for w in workers) == 8


def test_every_worker_gets_a_thread_even_if_there_are_more_workers_than_cores(
    tmp_path: Path,
) -> None:
    workers = table(tmp_path, 3, 2)
    for w in workers:
        w.claim()
    assert [w.claim() for w in workers] == [1, 1, 1]


def test_a_disk_that_takes_no_table_is_a_store_error() -> None:
    with pytest.raises(StoreError, match="free some space"):
        Shares.create("/dev/full", 1)
