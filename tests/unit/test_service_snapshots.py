"""Snapshots: kept under a second name, whole or not at all."""

from pathlib import Path

import pytest

from plait.core.errors import NotFound
from plait.service.snapshots import FILES, Snapshots
from plait.store.files import STAGING


def version(root: Path, text: str = "one") -> Path:
    root.mkdir(parents=True)
    for name in (*FILES, "optimizer.safetensors"):
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("durable", [True, False])
def test_it_outlives_what_it_was_taken_from_and_costs_no_bytes(
    tmp_path: Path, durable: bool
) -> None:
    source = version(tmp_path / "000001")
    snapshots = Snapshots(tmp_path / "kept")
    taken = snapshots.take("s/1", source, durable=durable)
    assert sorted(f.name for f in taken.iterdir()) == sorted(FILES), "no optimizer state"
    for name in FILES:
        assert (taken / name).samefile(source / name)
        (source / name).unlink()
    assert (taken / FILES[0]).read_text() == "one"


def test_taken_again_it_stays_and_of_what_is_gone_there_is_none(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "kept")
    taken = snapshots.take("s/1", version(tmp_path / "000001"))
    assert snapshots.take("s/1", version(tmp_path / "000002", "two")) == taken
    assert (taken / FILES[0]).read_text() == "one"
    for durable in (True, False):
        with pytest.raises(NotFound, match="000009"):
            snapshots.take("s/2", tmp_path / "000009", durable=durable)
    assert not snapshots.path("s/2").exists()


def test_dropped_one_by_one_or_all_and_cleared(tmp_path: Path) -> None:
    source = version(tmp_path / "000001")
    snapshots = Snapshots(tmp_path / "kept")
    for name in ("a/1", "a/2", "b/1"):
        snapshots.take(name, source)
    torn = snapshots.path(f"b/{STAGING}2")
    torn.mkdir()
    snapshots.drop("a/1")
    snapshots.drop("a/1")
    assert not snapshots.path("a/1").exists()
    assert snapshots.path("a/2").exists()
    snapshots.clear(keep={"b"})
    assert not snapshots.path("a").exists()
    assert not torn.exists()
    assert snapshots.path("b/1").exists()
    Snapshots(tmp_path / "nowhere").clear()
