"""Process: the parent's end of one grader process: start it, ask it, kill it.

It runs under a keeper (``cluster.keeper``), which is told to end it with all that a grader has
started, detached or not; Ctrl-C at the terminal reaches neither. A process that was killed is never
used again.
"""

import asyncio
import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import plait
from plait.cluster.keeper import SWEEP_S
from plait.core.errors import RewardError
from plait.rewards import sandbox
from plait.rewards.worker import HEADER

MAX_REPLY_BYTES = 64 * 2**20
"""A larger reply is a fault, not a score."""
START_S = 60.0
"""Starting Python on a busy small machine."""
KILL_S = SWEEP_S + 2.0
"""For the keeper to kill what a grader has started; then it is killed itself."""
LOAD_S = 120.0
"""Importing a grader's modules: sympy alone takes seconds on a loaded machine."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A grader must not take the cores that the engine computes on."""


class GraderDied(Exception):
    """The process ended in the middle of a request, or answered another; the message says how."""


class GraderProcess:
    """One live grader process; belongs to one event loop and serves one request at a time."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self._loaded: set[str] = set()
        self._killed = False
        self._n_asked = 0
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
        sys_path: Sequence[str],
        *,
        memory_bytes: int,
        log: Path | None = None,
        sandboxed: bool = False,
    ) -> Self:
        """A process that imports from ``sys_path`` first; what it prints is added to ``log``."""
        source_root = str(Path(plait.__file__).parents[1])
        path = os.pathsep.join([source_root, *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": path}
        before = sandbox.wrapped(sys_path, list(variables.items())) if sandboxed else []
        ours, theirs = socket.socketpair()
        output = open(log or os.devnull, "ab")  # noqa: ASYNC230, SIM115 - closed just below
        with theirs, output:
            popen = subprocess.Popen(  # noqa: ASYNC220 - returns at once; nothing is waited for
                [*before, sys.executable, "-P", "-m", "plait.rewards.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **variables},
            )
        process = cls(popen)
        try:
            process._reader, process._writer = await asyncio.open_connection(sock=ours)
            setup = {"sys_path": list(sys_path), "memory_bytes": memory_bytes}
            async with asyncio.timeout(START_S):
                await process._ask({"kind": "setup", "target": "", **setup})
        except BaseException:
            await process.kill()
            raise
        return process

    async def load(self, target: str) -> None:
        """Import ``target`` if it is not there yet; RewardError if it cannot be."""
        if target not in self._loaded:
            async with asyncio.timeout(LOAD_S):
                await self._ask({"kind": "load", "target": target})
            self._loaded.add(target)

    async def ask(self, request: dict[str, Any], deadline_s: float) -> Any:
        """The reply to one request; TimeoutError, GraderDied, or RewardError with what it raised.

        After any but the last, the process must be killed.
        """
        async with asyncio.timeout(deadline_s):
            return await self._ask(request)

    async def _ask(self, request: dict[str, Any]) -> Any:
        try:
            body = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # columns hold a user's objects, which may raise anything
            raise RewardError(f"a column cannot be sent to a process: {error}") from error
        try:
            self._n_asked += 1
            self._writer.write(HEADER.pack(self._n_asked, len(body)) + body)
            await self._writer.drain()
            number, n_bytes = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            if number != self._n_asked:
                raise GraderDied("it answered another request: does it use plait's own channel?")
            if n_bytes > MAX_REPLY_BYTES:
                raise GraderDied(f"its reply had {n_bytes} bytes")
            reply = json.loads(await self._reader.readexactly(n_bytes))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise GraderDied(await self._status()) from error
        except ValueError as error:
            raise GraderDied(f"its reply cannot be read: {error}") from error
        if "error" in reply:
            raise RewardError(reply["error"])
        return reply.get("value")

    async def _status(self) -> str:
        for _ in range(50):
            if (status := self._exit_status()) is not None:
                return status
            await asyncio.sleep(0.02)
        return "it closed its channel"

    def _exit_status(self) -> str | None:
        """How it ended, ``None`` while it lives; it stays a zombie, so that its process id and
        group cannot become somebody else's before ``kill``."""
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
