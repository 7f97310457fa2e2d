"""Shares: how many threads each worker of this machine may use right now.

A table of one byte per worker in shared memory. A worker marks itself busy before a forward step
and idle when it has nothing to do; between layers it divides the cores by the number of busy
workers. So a lone strict on-policy job uses the whole machine in every phase, and two busy workers
never oversubscribe it (two OpenMP teams that contend for cores collapse). With ``elastic`` off,
every worker counts as busy and keeps to its part, which shows what lending is worth.
"""

import mmap
import os
from pathlib import Path

from plait.store.files import disk_errors


class Shares:
    """One worker's view of the table; ``slot`` is its own byte."""

    def __init__(self, path: str | Path, *, slot: int, cores: int, elastic: bool = True) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            self._table = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        self._slot, self._cores, self._elastic = slot, cores, elastic

    @staticmethod
    def create(path: str | Path, n_workers: int) -> None:
        """Make an all-idle table for ``n_workers``; StoreError if the disk refuses."""
        with disk_errors(Path(path).parent):
            Path(path).write_bytes(bytes(max(1, n_workers)))

    def claim(self) -> int:
        """Mark this worker busy and return the threads it may use until its next claim."""
        self._table[self._slot] = 1
        busy = [i for i in range(len(self._table)) if self._table[i] or not self._elastic]
        share, extra = divmod(self._cores, len(busy))
        return max(1, share + (busy.index(self._slot) < extra))

    def release(self) -> None:
        """Mark this worker idle, so that the others may borrow its cores."""
        self._table[self._slot] = 0
