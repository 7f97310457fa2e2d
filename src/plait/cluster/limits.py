"""Limits: what a process that runs a user's code takes of the machine at most, and that it goes
first.

Set by the process on itself before it imports any of that code; they hold for all that it starts,
each by itself.
"""

import resource
from contextlib import suppress
from pathlib import Path

FIRST_TO_GO = 1000
"""What the kernel has to be told to end these processes before any other."""


def goes_first() -> None:
    """Where memory runs out these processes are ended before any other (Linux)."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_GO))


def limit_memory(n_bytes: int) -> None:
    """Private memory."""
    _lower(resource.RLIMIT_DATA, n_bytes)


def limit_files(n_bytes: int) -> None:
    """Every file that it writes; a longer one is an OSError."""
    _lower(resource.RLIMIT_FSIZE, n_bytes)


def limit_processes(n: int) -> None:
    """Processes of its user in its sandbox (Linux 5.14; of its user at all before). Root has no
    such limit."""
    _lower(resource.RLIMIT_NPROC, n)


def _lower(which: int, most: int) -> None:
    hard = resource.getrlimit(which)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))
