"""Orphans: a process that must not outlive the one who started it, or looks after those left."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that started it ends, in whatever
    it is doing then (Linux; elsewhere it ends when it next reads from its parent)."""
    parent = os.getppid()
    if _prctl(PR_SET_PDEATHSIG, number) and os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of descendants whose own parent ends (Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    try:
        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0  # type: ignore[no-any-return]
    except (OSError, AttributeError):
        return False
