"""Doing: what a worker is in the middle of, as the thread that gives its signs of life sees it.

It is stuck once it has been in the same step for longer than a limit, without so much as getting to
the next layer: a gradient over many sequences gets on all the time, however long it takes. Looks
are counted rather than seconds, as in ``pulse``: time in which the process was stopped, or the
machine suspended, is not the step's. What becomes of a stuck worker is decided elsewhere.
"""

import faulthandler
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Doing:
    """Written by the thread that computes, looked at by another one."""

    def __init__(self) -> None:
        self.limit_s = math.inf
        self._what = ""
        self._n = self._seen = self._n_looks = 0

    @contextmanager
    def one(self, what: str) -> Iterator[None]:
        """The block is one step."""
        self.gets_on()
        self._what = what
        try:
            yield
        finally:
            self._what = ""

    def gets_on(self) -> None:
        """The step is not stuck."""
        self._n += 1

    def is_stuck(self, every_s: float) -> bool:
        """Look, ``every_s`` after the last time; where it first proves to be stuck is written to
        the log."""
        what, n = self._what, self._n
        if not what or n != self._seen:
            self._seen, self._n_looks = n, 0
            return False
        self._n_looks += 1
        stuck_s = self._n_looks * every_s
        if stuck_s < self.limit_s:
            return False
        if stuck_s - every_s < self.limit_s:
            with suppress(OSError, ValueError):  # the disk of the log may be full
                faulthandler.dump_traceback(sys.stderr)
                print(f"in {what} for {stuck_s:g} s", file=sys.stderr, flush=True)
        return True
