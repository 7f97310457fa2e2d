"""Child: a process of its own for a user's code, and the channel to it: start, send, read, kill.

It runs under a keeper (``cluster.keeper``), which is told to end it with all that the code has
started, detached or not; Ctrl-C at the terminal reaches neither. A child that was killed is never
used again. What the frames say is its users' affair.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import plait
from plait.cluster import sandbox
from plait.cluster.frames import frame, read_frame
from plait.cluster.keeper import SWEEP_S

KILL_S = SWEEP_S + 2.0
"""For the keeper to kill what the code has started; then it is killed itself."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A user's code must not take the cores that the engine computes on."""


class ChildDied(Exception):
    """The process ended, or what it sent is no frame; the message says how."""


class Child:
    """One live process; belongs to one event loop."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self._killed = False
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return not self._killed and self._exit_status() is None

    @classmethod
    async def start(
        cls,
        module: str,
        *,
        reads: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
        sandboxed: bool = False,
    ) -> Self:
        """A process whose main program is ``module``; what it prints is added to ``log``.

        ``reads``: what it can see in a sandbox, besides Python and plait. ConfigError where there
        is no sandbox and one is wanted.
        """
        source_root = str(Path(plait.__file__).parents[1])
        path = os.pathsep.join([source_root, *filter(None, [os.environ.get("PYTHONPATH")])])
        own = dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": path, **(variables or {})}
        before = sandbox.wrapped(reads, list(own.items())) if sandboxed else []
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as failed:
            failed.callback(ours.close)
            output = open(log or os.devnull, "ab")  # noqa: ASYNC230, SIM115 - closed just below
            with theirs, output:
                popen = subprocess.Popen(  # noqa: ASYNC220 - returns at once; nothing is waited for
                    [*before, sys.executable, "-P", "-m", module, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={**os.environ, **own},
                )
            failed.pop_all()
        child = cls(popen)
        try:
            child._reader, child._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            await child.kill()
            raise
        return child

    def send(self, number: int, body: bytes) -> None:
        """Hand over a frame; ``drained`` waits until it has gone."""
        self._writer.write(frame(number, body))

    async def drained(self) -> None:
        """Wait until the process has taken most of what was sent; ChildDied if it never will."""
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise ChildDied(await self._status()) from error

    async def read(self, most: int) -> tuple[int, bytes]:
        """The next frame, of at most ``most`` bytes; ChildDied."""
        try:
            return await read_frame(self._reader, most)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ChildDied(await self._status()) from error
        except ValueError as error:
            raise ChildDied(str(error)) from error

    async def _status(self) -> str:
        for _ in range(50):
            if (status := self._exit_status()) is not None:
                return status
            await asyncio.sleep(0.02)
        return "it closed its channel"

    def _exit_status(self) -> str | None:
        """How it ended, ``None`` while it lives; it stays a zombie, so that its process id and
        group cannot become somebody else's before ``kill``."""
        if self._popen.returncode is not None:
            return "it was killed"
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self._popen.pid, options)
        if found is None:
            return None
        return f"{'exit status' if found.si_code == os.CLD_EXITED else 'signal'} {found.si_status}"

    async def kill(self) -> None:
        """End the process and everything that it has started, and collect it."""
        if self._killed:
            return
        self._killed = True
        self._popen.terminate()
        if hasattr(self, "_writer"):
            self._writer.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_S):
                await self._collected()
        self._popen.kill()  # does nothing once it has been collected
        await self._collected()

    async def _collected(self) -> None:
        while self._popen.poll() is None:  # noqa: ASYNC110 - a matter of milliseconds
            await asyncio.sleep(0.005)
