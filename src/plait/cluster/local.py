"""Local processes: start a worker on this machine and hold its end of the socket pair.

Each worker is a session of its own, so a Ctrl-C at the terminal reaches the head alone and nothing
is ever ended by name. A worker ends itself when the head's end of the socket closes.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from plait.cluster.pulse import Pulse
from plait.runtime.messages import WorkerConfig

STOP_S = 5.0
"""How long a worker gets to end by itself before it is killed: one long micro-batch."""


class WorkerProcess:
    """One worker process and the connection to it."""

    def __init__(
        self, config: WorkerConfig, *, shares: Path, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """Start the process; it answers ``Ready`` once its engines are built."""
        self.config = config
        ours, theirs = socket.socketpair()
        watched, beating = socket.socketpair()
        with ours, theirs, watched, beating, log.open("ab") as out:
            fds = (theirs.fileno(), beating.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "plait.runtime.worker", *map(str, fds), str(shares)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **worker_env(config.cores), **(env or {})},
            )
            self.conn = Connection(ours.detach())
            self._pulse = Pulse(watched.detach())
        self.conn.send(config)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; ``None`` while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()
        self._close()

    def kill_if_hung(self) -> str:
        """Look for a sign of life; end it if it hangs (``Pulse``), and say how. Waits for nothing:
        one that hangs in the kernel takes its time to die."""
        if why := self._pulse.look():
            self._process.kill()
        return why

    def join(self) -> None:
        """Wait for it to end after ``Stop``; kill it if it does not."""
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self.conn.close()
        self._pulse.close()


def worker_env(cores: int) -> dict[str, str]:
    """Thread settings of a worker: a team of at most ``cores`` that sleeps soon after a parallel
    region, since a spinning team steals the neighbour's core; and one heap for all threads, since
    each of two training lanes keeps what it has freed (glibc; measured: 0.6 GB of 3.7)."""
    return {
        "OMP_NUM_THREADS": str(cores),
        "MKL_NUM_THREADS": str(cores),
        "OMP_DYNAMIC": "FALSE",
        "GOMP_SPINCOUNT": "2000",
        "MALLOC_ARENA_MAX": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
