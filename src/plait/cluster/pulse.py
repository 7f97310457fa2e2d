"""Pulse: the sign of life that a worker process gives, whatever it computes.

A thread of the worker writes a byte into a socket now and then. It needs the interpreter for a
moment only, so a step may take minutes without a gap; it stops when the process is stopped
(SIGSTOP, a debugger) or stuck in native code that never lets go of the interpreter. Whoever holds
the other end looks now and then: ``LOOKS`` looks in a row that find nothing are silence. Looks are
counted rather than seconds, so that the time in which nobody ran at all (a paused container, a
suspended machine) or in which the looking process was stopped is laid to no worker.

The sign is another one while what the worker computes is stuck (``doing``).
"""

import os
import socket
import threading
import time

from plait.cluster.doing import Doing

ALIVE, STUCK = b".", b"!"
BEAT_S = 0.5
SILENT_S = 60.0
"""A thread that needs microseconds gets them within this on any machine that is not lost; and
whoever waits for a stopped worker waits no longer."""
LOOKS = 12


def beat(fd: int, doing: Doing) -> None:
    """Give signs into this socket from now on, until its other end is closed."""
    os.set_blocking(fd, False)
    threading.Thread(target=_beat, args=(fd, doing), name="plait-pulse", daemon=True).start()


def _beat(fd: int, doing: Doing) -> None:
    while True:
        try:
            os.write(fd, STUCK if doing.is_stuck(BEAT_S) else ALIVE)
        except BlockingIOError:
            pass  # nobody has looked for minutes: it is full of signs
        except OSError:
            return
        time.sleep(BEAT_S)


class Pulse:
    """The end at which a worker's signs arrive."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._n_missed = 0

    def look(self) -> str:
        """Look, ``SILENT_S / LOOKS`` after the last time; why the worker hangs, empty if it does
        not: ``LOOKS`` have found no sign, or the last sign says that it is stuck."""
        try:
            signs = self._socket.recv(2**16)
        except OSError:  # there are none; or nobody is to look any more
            signs = b""
        self._n_missed = 0 if signs else self._n_missed + 1
        if signs.endswith(STUCK):
            return "one step of its work took longer than --step-limit"
        return f"it gave no sign of life for {SILENT_S:g} s" if self._n_missed >= LOOKS else ""

    def close(self) -> None:
        """Nobody looks any more."""
        self._socket.close()
