"""Directories that appear whole or not at all; logs cut back to a committed step."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plait.core.errors import StoreError
from plait.obs.jsonl import read_jsonl
from plait.store.files import STAGING, VersionDirs, VersionWriter, truncate_jsonl


def fill(directory: Path) -> None:
    (directory / "adapter").mkdir()
    (directory / "adapter" / "weights").write_bytes(b"x" * 1000)
    (directory / "config.json").write_text("{}")


def write(versions: VersionDirs, version: int) -> None:
    with VersionWriter(versions.path(version)) as directory:
        fill(directory)


def visible(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir())


def test_write_seals_under_the_final_name(tmp_path: Path) -> None:
    versions = VersionDirs(tmp_path / "versions")
    write(versions, 12)
    assert visible(tmp_path / "versions") == ["000012"]
    assert (versions.path(12) / "adapter" / "weights").stat().st_size == 1000
    assert versions.versions() == [12]


def test_every_file_and_directory_is_fsynced_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write(VersionDirs(tmp_path), 1)
    names = [str(Path(p).relative_to(tmp_path)) for p in synced]
    assert set(names[:-1]) == {
        "tmp-000001",
        "tmp-000001/adapter",
        "tmp-000001/adapter/weights",
        "tmp-000001/config.json",
    }
    assert names[-2:] == ["tmp-000001", "."]


def test_what_is_removed_is_gone_and_nothing_else(tmp_path: Path) -> None:
    versions = VersionDirs(tmp_path)
    for version in range(1, 8):
        write(versions, version)
    versions.remove([1, 2, 4, 5, 99])
    assert versions.versions() == [3, 6, 7]
    assert visible(tmp_path) == ["000003", "000006", "000007"]


def test_sweep_removes_what_has_no_row_and_names_what_is_missing(tmp_path: Path) -> None:
    versions = VersionDirs(tmp_path)
    for version in (1, 2, 3):
        write(versions, version)
    (tmp_path / f"{STAGING}000004").mkdir()
    fill(tmp_path / f"{STAGING}000004")
    versions.path(2).rename(tmp_path / "gone-000002")
    swept = versions.sweep([1, 5])
    assert swept.removed == ("gone-000002", "tmp-000004", "000003")
    assert swept.missing == (5,)
    assert visible(tmp_path) == ["000001"]


def test_a_store_that_is_behind_its_versions_by_more_than_a_crash_is_told(tmp_path: Path) -> None:
    versions = VersionDirs(tmp_path / "one" / "versions")
    versions.check_rows(-1)
    for version in (0, 1, 2):
        write(versions, version)
    versions.check_rows(2)
    versions.check_rows(1)
    for last in (0, -1):
        with pytest.raises(StoreError, match=r"000002 is there and the store knows no version"):
            versions.check_rows(last)
    assert versions.versions() == [0, 1, 2]


def test_a_store_that_is_behind_by_one_version_is_told_from_a_crash(tmp_path: Path) -> None:
    versions = VersionDirs(tmp_path / "one" / "versions")
    for version in (0, 1):
        write(versions, version)
        versions.note_committed(version)
    write(versions, 2)  # and a crash before its row
    versions.check_rows(1)
    versions.note_committed(2)
    versions.check_rows(2)
    with pytest.raises(StoreError, match=r"version 2 of .* was committed and the store ends at 1"):
        versions.check_rows(1)
    (tmp_path / "one" / "committed").write_text("")  # the power failed
    versions.check_rows(1)


def test_empty_root_has_nothing(tmp_path: Path) -> None:
    versions = VersionDirs(tmp_path / "none")
    assert versions.versions() == []
    assert versions.sweep([]).removed == ()


def test_version_writer_shows_the_directory_only_when_the_block_is_through(tmp_path: Path) -> None:
    final = tmp_path / "versions" / "000001"
    with VersionWriter(final) as directory:
        fill(directory)
        assert not final.exists()
    assert (final / "config.json").is_file()
    with pytest.raises(ZeroDivisionError), VersionWriter(final.with_name("000002")) as directory:
        (directory / "half").write_text(f"{1 / 0}")
    assert visible(final.parent) == ["000001"]


def test_version_writer_replaces_what_was_never_committed(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with VersionWriter(tmp_path / "000001") as directory:
            (directory / text).touch()
    assert visible(tmp_path / "000001") == ["second"]
    assert visible(tmp_path) == ["000001"]


def test_version_writer_clears_what_a_crash_left_half_written(tmp_path: Path) -> None:
    staging = tmp_path / f"{STAGING}000001"
    staging.mkdir()
    (staging / "half").touch()
    with VersionWriter(tmp_path / "000001") as directory:
        fill(directory)
    assert visible(tmp_path / "000001") == ["adapter", "config.json"]


def test_version_writer_on_a_full_disk_is_a_store_error(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreError, match=r"No space left.*free some space"),
        VersionWriter(tmp_path / "000001"),
        open("/dev/full", "wb") as file,
    ):
        file.write(b"x")
    assert visible(tmp_path) == []


WRITER = """
import sys
from pathlib import Path
from plait.store.files import VersionDirs, VersionWriter

versions = VersionDirs(sys.argv[1])
n = 0
while True:
    n += 1
    with VersionWriter(versions.path(n)) as directory:
        for i in range(20):
            (directory / f"{i}").write_bytes(b"x" * 1000)
    print(n, flush=True)
"""


def test_kill_leaves_only_whole_directories(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert process.stdout is not None
    with process.stdout as output:
        for _ in range(5):
            last = int(output.readline())
        process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    versions = VersionDirs(tmp_path)
    assert versions.versions()[:last] == list(range(1, last + 1))
    for version in versions.versions():
        assert [f.stat().st_size for f in versions.path(version).iterdir()] == [1000] * 20
    versions.sweep(range(1, last + 1))
    assert visible(tmp_path) == [f"{n:06d}" for n in range(1, last + 1)]


def test_truncate_drops_later_steps_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"loss":0.5}\n{"note":"x"}\n{"step":2}\n{"step":3}\n{"step":4,"lo')
    assert truncate_jsonl(path, 2) == 1
    assert list(read_jsonl(path)) == [{"step": 1, "loss": 0.5}, {"note": "x"}, {"step": 2}]
    assert path.read_bytes().endswith(b"\n")
    assert visible(tmp_path) == ["metrics.jsonl"]


def test_truncate_without_later_steps_only_repairs(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step":1}\n{"st')
    assert truncate_jsonl(path, 5) == 0
    assert path.read_text() == '{"step":1}\n'
    assert truncate_jsonl(tmp_path / "absent.jsonl", 5) == 0
