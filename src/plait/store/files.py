"""Files: directories that appear whole or not at all, and what a resume does to logs.

Invariants: a directory under its final name is complete and on the disk (files, directory and
parent are fsynced before and after the rename); only another attempt at what was never committed
replaces it. Everything half-made or half-removed carries a prefix that ``sweep`` clears. A
version's directory is sealed before its row is committed and its row is dropped before it is
removed, so a row always has its directory; a directory without a row is the trace of a crash in
between.

Which versions are kept is the caller's decision; the rows are ``store.mutations``'.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from plait.core.errors import StoreError
from plait.obs.jsonl import drop_torn_line, dumps, read_jsonl

STAGING = "tmp-"
"""Prefix of a directory being written."""
COMMITTED = "committed"
"""Name of the note beside a run's versions that says which was committed last: the store can be
replaced by an older copy, and then only the versions themselves know better."""
LEAVING = "gone-"
"""Prefix of a directory being removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What recovery found: removed directory names, and versions whose directory is missing."""

    removed: tuple[str, ...]
    missing: tuple[int, ...]


class VersionWriter:
    """``with VersionWriter(final) as directory``: fill it, and it appears as ``final``, whole.

    If the block raises, nothing appears. What an earlier attempt left under ``final`` gives way: a
    worker that is asked again was killed before anybody committed what it wrote.
    """

    def __init__(self, final: str | Path) -> None:
        self._final = Path(final)
        self._staging = self._final.with_name(f"{STAGING}{self._final.name}")

    def __enter__(self) -> Path:
        with disk_errors(self._final.parent):
            shutil.rmtree(self._staging, ignore_errors=True)
            self._staging.mkdir(parents=True)
        return self._staging

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._seal()
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(self._final.parent, error) from error

    def _seal(self) -> None:
        """Make what was staged durable, then visible."""
        root = self._final.parent
        with disk_errors(root):
            for file in sorted(self._staging.rglob("*"), reverse=True):
                _fsync(file)
            _fsync(self._staging)
            _remove(self._final)
            self._staging.rename(self._final)
            _fsync(root)


def in_the_way(final: Path) -> Path | None:
    """What a ``VersionWriter`` of ``final`` would clear, its staging names included, if anything.

    For paths that a user names: what lies there may be anybody's.
    """
    names = (final.name, f"{STAGING}{final.name}", f"{LEAVING}{final.name}")
    return next((p for p in map(final.with_name, names) if os.path.lexists(p)), None)


class VersionDirs:
    """A run's version directories: ``versions/000012``. One process owns the root."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def path(self, version: int) -> Path:
        """Where a version lies once sealed."""
        return self.root / f"{version:06d}"

    def versions(self) -> list[int]:
        """Sealed versions, in order."""
        if not self.root.is_dir():
            return []
        return sorted(int(e.name) for e in self.root.iterdir() if e.name.isdecimal())

    def remove(self, versions: Iterable[int]) -> None:
        """Remove versions, whose rows the caller has dropped before."""
        with disk_errors(self.root):
            for version in versions:
                _remove(self.path(version))

    def sweep(self, committed: Iterable[int]) -> Swept:
        """On recovery: remove what is half-made or half-removed and what has no row."""
        rows = set(committed)
        with disk_errors(self.root):
            removed = _clear_unfinished(self.root)
            for version in self.versions():
                if version not in rows:
                    _remove(self.path(version))
                    removed.append(self.path(version).name)
        missing = sorted(rows - set(self.versions()))
        return Swept(removed=tuple(removed), missing=tuple(missing))

    @property
    def _committed(self) -> Path:
        return self.root.with_name(COMMITTED)

    def note_committed(self, version: int) -> None:
        """Write down, beside the versions, that ``version`` has its row."""
        staging = self._committed.with_name(f"{STAGING}{COMMITTED}")
        with disk_errors(self._committed):
            staging.write_text(f"{version}\n")
            staging.replace(self._committed)

    def check_rows(self, last: int) -> None:
        """StoreError if rows are missing after the ``last`` (-1: there is none), so that a sweep
        would remove what was committed. It may be one row that is missing: a crash, too, leaves a
        version without one, but never a version that was noted as committed."""
        if (newest := max(self.versions(), default=-1)) > last + 1:
            known = f"no version after {last}" if last >= 0 else "no version"
            raise StoreError(
                f"{self.path(newest)} is there and the store knows {known}: restore the one "
                "that belongs to it, or start anew in another directory"
            )
        try:
            noted = int(self._committed.read_text())
        except (OSError, ValueError):  # an older launch's, or lost with the machine's power
            return
        if noted > last:
            raise StoreError(
                f"version {noted} of {self.root} was committed and the store ends at {last}: it is "
                "an older copy. Restore the one that belongs to the versions; or, to go on from "
                f"{last} and give up what followed, remove {self._committed}"
            )


def truncate_jsonl(path: str | Path, keep_step: int) -> int:
    """For a resume: drop rows of steps after ``keep_step`` and a torn last line; rows dropped.

    Rows without a ``step`` stay. The file is replaced whole, or left as it was.
    """
    return drop_rows(path, lambda row: _later(row.get("step"), keep_step))


def drop_rows(path: str | Path, unwanted: Callable[[dict[str, Any]], bool]) -> int:
    """Drop a torn last line and every row that is ``unwanted``; how many rows.

    The file is replaced whole, or left as it was.
    """
    path = Path(path)
    with disk_errors(path):
        if not path.is_file():
            return 0
        drop_torn_line(path)
        n_dropped = sum(unwanted(row) for row in read_jsonl(path))
        if n_dropped:
            kept = (row for row in read_jsonl(path) if not unwanted(row))
            write_whole(path, (dumps(row) + "\n" for row in kept))
        return n_dropped


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Replace a small file by ``lines``, durably, whole or not at all."""
    with disk_errors(path):
        staging = path.with_name(f"{STAGING}{path.name}")
        with staging.open("w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
        _fsync(path.parent)


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn what the operating system says about a disk into what to do about it."""
    try:
        yield
    except OSError as error:
        raise disk_error(where, error) from error


def disk_error(where: Path, error: OSError) -> StoreError:
    """The message for what the operating system refused under ``where``."""
    return StoreError(
        f"cannot write under {where} ({error.strerror or error}): "
        "free some space or check that it is writable, then resume"
    )


def _remove(directory: Path) -> None:
    """Remove a sealed directory, if it is there: out of sight first, then file by file."""
    leaving = directory.with_name(f"{LEAVING}{directory.name}")
    shutil.rmtree(leaving, ignore_errors=True)
    if directory.exists():
        directory.rename(leaving)
        shutil.rmtree(leaving)


def _clear_unfinished(root: Path) -> list[str]:
    """Remove what a crash left half-made or half-removed; the names."""
    if not root.is_dir():
        return []
    found = sorted(e for e in root.iterdir() if e.name.startswith((STAGING, LEAVING)))
    for entry in found:
        shutil.rmtree(entry)
    return [entry.name for entry in found]


def _later(step: object, keep_step: int) -> bool:
    return isinstance(step, int | float) and step > keep_step


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
