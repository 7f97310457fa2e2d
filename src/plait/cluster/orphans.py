"""Orphans: a process that must not outlive the one that started it."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, in whatever it is
    doing then (Linux; elsewhere it ends when it next reads from its parent)."""
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(0)
