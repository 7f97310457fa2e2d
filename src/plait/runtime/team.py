"""Team: the threads that a worker computes with, taken anew between the layers of a step.

One micro-batch takes seconds on a CPU. If a worker kept its threads for all of it, a neighbour that
wakes meanwhile would contend for the cores (two teams on the same cores lose far more than half),
and one that falls asleep would leave them idle.
"""

import time
from collections.abc import Callable

from plait.runtime.shares import Shares


class Team:
    """One worker's threads, and the account of how many it had."""

    def __init__(self, shares: Shares, *, now: Callable[[], float] = time.monotonic) -> None:
        self._shares, self._now = shares, now
        self._set_threads: Callable[[int], None] | None = None
        self._threads = 0
        self._began_s = self._since_s = self._thread_s = 0.0

    def serves(self, set_threads: Callable[[int], None]) -> None:
        """The engines are built: this is how they are told."""
        self._set_threads = set_threads

    def begin(self) -> float:
        """Claim threads for a slice of work; when it began."""
        self._began_s = self._since_s = self._now()
        self._thread_s = 0.0
        self.claim()
        return self._began_s

    def claim(self) -> None:
        """Take this worker's share of the cores as it is now; called between layers."""
        if self._set_threads is None:
            return
        self._count()
        threads = self._shares.claim()
        if threads != self._threads:
            self._set_threads(threads)
            self._threads = threads

    def end(self) -> tuple[float, float]:
        """When the slice ended, and how many threads it had on average."""
        now = self._count()
        took = now - self._began_s
        return now, round(self._thread_s / took, 2) if took > 0 else float(self._threads)

    def _count(self) -> float:
        """Charge the time since the last look at the clock to the threads of that time."""
        now = self._now()
        self._thread_s += self._threads * (now - self._since_s)
        self._since_s = now
        return now

    def release(self) -> None:
        """Nothing to do for now: the others may have these cores."""
        self._shares.release()
