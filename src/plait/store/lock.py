"""Lock: one live process per launch directory.

The operating system drops the lock with the process that holds it, ``kill -9`` included, so a
resume never waits for the dead and never runs beside the living.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from plait.core.errors import StoreError


class LaunchLock:
    """Exclusive ownership of a launch directory, from construction to ``close``."""

    def __init__(self, launch_dir: str | Path) -> None:
        """Take the lock; StoreError, naming the owner, if another process holds it."""
        path = Path(launch_dir) / "lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+")
        except OSError as error:
            raise StoreError(
                f"cannot write {path} ({error.strerror}): use another launch directory"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            raise StoreError(
                f"{launch_dir} is in use by process {owner}: end it or use another directory"
            ) from error
        try:
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # what could not be written cannot be flushed now
                self._file.close()
            raise StoreError(
                f"cannot write {path} ({error.strerror}): "
                "free some space or use another launch directory"
            ) from error

    def close(self) -> None:
        """Give the directory up."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
