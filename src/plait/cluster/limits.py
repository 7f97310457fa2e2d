"""Limits: what a process that runs a user's code takes of the machine at most.

Set by the process on itself before it imports any of that code; they hold for all that it starts,
each by itself.
"""

import resource


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
