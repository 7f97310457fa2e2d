"""The ``plait`` program in a process of its own, and what it leaves behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from launches import worker_pids

PLAIT = (sys.executable, "-c", "from plait.cli.entry import main; main()")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Tests that a shell has begun in the background ignore it, and what they begin would too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

START_S = 120.0
"""How long a step may be waited for: the machine may be busy with other things."""
GONE_S = 10.0
"""How long a worker may outlive its head: it ends at once, but must be collected."""


class Program:
    """One run of the program."""

    def __init__(self, *arguments: str | Path) -> None:
        self._process = subprocess.Popen(
            [*PLAIT, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def wait(self, timeout_s: float = START_S) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        out, err = self._process.communicate(timeout=timeout_s)
        return self._process.returncode, out, err

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def started(self) -> list[psutil.Process]:
        """What it has started and what that has."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready``; fails if the program ends before."""
        deadline = time.monotonic() + START_S
        while not ready():
            assert self._process.poll() is None, self._process.communicate()
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.01)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def program(*arguments: str | Path) -> Iterator[Program]:
    """A program that does not outlive the block."""
    running = Program(*arguments)
    try:
        yield running
    finally:
        running.end()


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Run the program to its end."""
    with program(*arguments) as running:
        return running.wait()


def kill_everything(running: Program, directory: Path) -> None:
    """The head first, then whatever workers are left, by their ids."""
    running.signal(signal.SIGKILL)
    for pid in worker_pids(directory):
        with_suppress_kill(pid)


def with_suppress_kill(pid: int) -> None:
    if is_worker(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def is_worker(pid: int) -> bool:
    """True if the process lives and is one of plait's workers (ids are used again)."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any(
            "plait.runtime.worker" in part for part in process.cmdline()
        )
    except psutil.NoSuchProcess:
        return False


def assert_nobody_left(directory: Path) -> None:
    """Every worker that the launch ever had is gone."""
    pids = worker_pids(directory)
    assert pids
    deadline = time.monotonic() + GONE_S
    while left := [pid for pid in pids if is_worker(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)
