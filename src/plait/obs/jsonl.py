"""JSONL: append-only files of one JSON object per line.

Invariants: a line is written by one system call and is complete when ``write`` returns; a write
that fails (full disk) is taken back, so that the file still ends in a complete line. A process
killed inside a write leaves at most one torn last line, which readers ignore and the next writer
removes. Numbers that are not finite become null. Whether lines also survive a power cut
(``fsync``) is the caller's choice: the store is the truth, these files are its account.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from plait.core.errors import StoreError
from plait.core.text import writable

BLOCK_BYTES = 1 << 16
"""How much of a file's end is read at a time in search of its last newline."""


def dumps(value: object) -> str:
    """Compact JSON; NaN and infinities, which JSON lacks, become null, and what UTF-8 lacks (lone
    surrogates) is escaped."""
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)
    return writable(text)


class JsonlWriter:
    """Appends rows to one file. Safe to call from several threads."""

    def __init__(self, path: str | Path, *, fsync: bool = False) -> None:
        """Open for appending, after removing a torn last line; StoreError if that is impossible."""
        self.path = Path(path)
        self._fsync = fsync
        self._lock = Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            drop_torn_line(self.path)
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; StoreError, with the file as it was, if the disk refuses it or the file
        has been closed."""
        line = dumps(row).encode() + b"\n"
        with self._lock:
            if self._file.closed:
                raise StoreError(f"{self.path} is closed: nothing more is written to it")
            size = os.fstat(self._file.fileno()).st_size
            try:
                if self._file.write(line) != len(line):
                    raise OSError(None, "the disk is full")
                if self._fsync:
                    os.fsync(self._file.fileno())
            except OSError as error:
                if self.path.is_file():
                    os.ftruncate(self._file.fileno(), size)
                raise StoreError(
                    f"cannot write {self.path} ({error.strerror}): free some space, then resume"
                ) from error

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        with self._lock:
            self._file.close()


class JsonlTail:
    """A reader of a file that grows: each line is read once, when it is complete.

    Lines have numbers from 1. A file that was cut or replaced meanwhile is read from its beginning,
    under the same numbers; what lies at or before ``last`` is passed over unread.
    """

    def __init__(self, path: str | Path, *, after: int = 0) -> None:
        self.last = after
        """The number up to which all is told, a line that cannot be read included."""
        self._path = Path(path)
        self._file_id, self._offset, self._number = -1, 0, 0

    def more(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows that are new, with their numbers; errors as of ``read_jsonl``."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._file_id or found.st_size < self._offset:
                self._file_id, self._offset, self._number = found.st_ino, 0, 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                self._number += 1
                if self._number > self.last:
                    self.last = self._number
                    yield self._number, _row(self._path, self._number, line)


def read_jsonl(
    path: str | Path, objection: Callable[[dict[str, Any]], str | None] = lambda row: None
) -> Iterator[dict[str, Any]]:
    """Rows in order. A missing file has none; a torn last line is ignored, any other that cannot be
    read, or has an ``objection``, is a StoreError that names it."""
    path = Path(path)
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            row = _row(path, number, line)
            if (why := objection(row)) is not None:
                raise StoreError(f"{path}:{number} {why}: remove the line")
            yield row


def drop_torn_line(path: Path) -> int:
    """Cut what follows the last newline; the number of bytes removed."""
    if not path.is_file():
        return 0
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - BLOCK_BYTES)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)
        return size - end


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}:{number} is not JSON ({error}): remove the line") from error
    if not isinstance(row, dict):
        raise StoreError(f"{path}:{number} is not a JSON object: remove the line")
    return row


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
