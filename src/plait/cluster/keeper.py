"""Keeper: a process of its own that runs a user's code in a child and leaves nothing behind.

A function may fork, detach and go on for ever (a "daemon"): no longer its starter's child, nor in
its session, nor, once it has closed them, at the end of any pipe. The keeper is what the kernel
hands such orphans to (Linux: a child subreaper). It never runs the user's code itself; when the
child ends, when it is told to (SIGTERM) or when its own parent ends, it kills every descendant and
ends as the child did.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from plait.cluster.orphans import adopt_orphans, end_with_parent

SWEEP_S = 5.0
"""A killed process dies at once, unless the kernel holds it; then it is not waited for."""
WATCHED = (signal.SIGTERM, signal.SIGCHLD)


def kept(main: Callable[[], None]) -> None:
    """Run ``main`` in a child; the calling process becomes its keeper. Only the child returns.

    To be called first of all, before there are threads. The child leads a session of its own, which
    no signal to its own process group leaves, and ends with the keeper.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    end_with_parent(signal.SIGTERM)
    adopt_orphans()
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        end_with_parent()
        main()
        return
    _keep_out_of_pipes()
    status = _watch(child)
    sweep()
    _end_as(status)


def sweep() -> None:
    """Kill all descendants of this process and collect them."""
    deadline_s = time.monotonic() + SWEEP_S
    while time.monotonic() < deadline_s:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _watch(child: int) -> int | None:
    """The child's wait status when it ends; ``None`` if the keeper is told to end before."""
    while True:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return ended[1]
        except ChildProcessError:
            return None
        if signal.sigwait(WATCHED) == signal.SIGTERM:
            return None


def _keep_out_of_pipes() -> None:
    """Whoever reads from the child must see its end, whatever the keeper does: only the terminal's
    descriptor for errors stays open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _end_as(status: int | None) -> None:
    code = 1 if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError):  # SIGKILL can be neither set nor blocked
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)
