"""Pulse: the sign of life that a worker process gives, whatever it computes.

A thread of the worker writes a byte into a socket now and then. It needs the interpreter for a
moment only, so a step may take minutes without a gap; it stops when the process is stopped
(SIGSTOP, a debugger) or stuck in native code that never lets go of the interpreter. Whoever holds
the other end looks now and then: ``LOOKS`` looks in a row that find nothing are silence. Looks are
counted rather than seconds, so that the time in which nobody ran at all (a paused container, a
suspended machine) or in which the looking process was stopped is laid to no worker.

A step that never ends although its process runs is not noticed here.
"""

import os
import socket
import threading
import time

BEAT_S = 0.5
SILENT_S = 60.0
"""A thread that needs microseconds gets them within this on any machine that is not lost; and
whoever waits for a stopped worker waits no longer."""
LOOKS = 12


def beat(fd: int) -> None:
    """Give signs into this socket from now on, until its other end is closed."""
    os.set_blocking(fd, False)
    threading.Thread(target=_beat, args=(fd,), name="plait-pulse", daemon=True).start()


def _beat(fd: int) -> None:
    while True:
        try:
            os.write(fd, b".")
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

    def is_silent(self) -> bool:
        """Look, ``SILENT_S / LOOKS`` after the last time; true after ``LOOKS`` without a sign."""
        try:
            signs = self._socket.recv(2**16)
        except OSError:  # there are none; or nobody is to look any more
            signs = b""
        self._n_missed = 0 if signs else self._n_missed + 1
        return self._n_missed >= LOOKS

    def close(self) -> None:
        """Nobody looks any more."""
        self._socket.close()
