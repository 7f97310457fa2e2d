"""Printing: what a user's code prints goes to its job's log, up to a size, and never fails."""

import errno
import io
import sys


class _Log(io.FileIO):
    """A log that is full takes no more, without an error: printing is nobody's mistake."""

    def write(self, text: object) -> int:
        try:
            return super().write(text)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno not in (errno.EFBIG, errno.ENOSPC):
                raise
            return memoryview(text).nbytes  # type: ignore[arg-type]


def bounded_prints() -> None:
    """``print`` writes through to the log line by line, and drops what is too much."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        raw = io.BufferedWriter(_Log(fd, "w", closefd=False))
        text = io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", line_buffering=True)
        setattr(sys, name, text)
