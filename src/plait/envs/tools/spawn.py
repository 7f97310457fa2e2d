"""Spawn: one operating-system process that runs ``child``, its keeper, and the pipes to it.

It has its own session (Ctrl-C at the terminal reaches the head, which ends it), one compute thread
unless told otherwise, and the parent's import path. What it has started ends with it (``keeper``).
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait.cluster.keeper import SWEEP_S

MAX_LINE_BYTES = 64 * 2**20
"""Longest line of replies; asyncio's own limit of 64 kB is less than one batch of documents."""
END_S = 2.0
"""Time to end by itself after its stdin is closed."""
KILL_S = SWEEP_S + 1.0
"""Time for its keeper to end it and all that it has started, before the keeper is killed too."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
TAIL_LINES = 20
"""Last lines of the tool's stderr, kept for the message when it dies."""


class ChildDied(Exception):
    """The process ended or never came up; the message says how."""


@dataclass(slots=True, kw_only=True)
class Spawned:
    """A live tool process."""

    process: asyncio.subprocess.Process
    """Its keeper: it ends as the tool does."""
    errors: deque[str]
    drain: "asyncio.Task[None]"
    pid: int = 0
    """The tool's own process, once it is ready."""

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def ask(self, line: str) -> Any:
        """Send a line of JSON and read one; ChildDied if the process ends meanwhile."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            await self.process.stdin.drain()
            reply = await self.process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            reply = b""
        if not reply.endswith(b"\n"):
            await self._wait(END_S)  # its own exit status says more than ours for killing it
            await self.kill()
            raise ChildDied(self.epitaph())
        return json.loads(reply)

    def epitaph(self) -> str:
        """Exit status and the last thing it said."""
        last = next((line for line in reversed(self.errors) if line), "")
        return f"exit status {self.process.returncode}" + (f": {last}" if last else "")

    async def end(self) -> None:
        """Close its stdin, at which it ends; kill it if it does not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self._wait(END_S)
        await self.kill()

    async def kill(self) -> None:
        """Kill it and all that it has started, and collect what is left of it."""
        self._signal(signal.SIGTERM)
        await self._wait(KILL_S)
        self._signal(signal.SIGKILL)
        await self.process.wait()
        await asyncio.wait([self.drain], timeout=END_S)
        self.drain.cancel()

    def _signal(self, number: int) -> None:
        if self.alive:
            # Not process.send_signal(): it polls first, and takes the exit status from asyncio.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.process.wait()


async def spawn(
    target: str, config: Mapping[str, Any], *, n_threads: int, start_s: float
) -> Spawned:
    """Start the tool and wait until it is ready; ChildDied with the reason if it fails."""
    env = {
        **os.environ,
        **dict.fromkeys(THREAD_VARIABLES, str(n_threads)),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTHONUNBUFFERED": "1",
    }
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "plait.envs.tools.child"),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=env,
        limit=MAX_LINE_BYTES,
        start_new_session=True,
    )
    errors: deque[str] = deque(maxlen=TAIL_LINES)
    child = Spawned(
        process=process, errors=errors, drain=asyncio.create_task(_drain(process, errors))
    )
    try:
        async with asyncio.timeout(start_s):
            hello = await child.ask(json.dumps({"target": target, "config": dict(config)}))
    except TimeoutError:
        await child.kill()
        raise ChildDied(f"it was not ready within {start_s:g} s") from None
    except BaseException:  # cancelled: a process must not outlive the one who asked for it
        await asyncio.shield(child.kill())
        raise
    if "failed" in hello:
        await child.kill()
        raise ChildDied(str(hello["failed"]))
    child.pid = hello["pid"]
    return child


async def _drain(process: asyncio.subprocess.Process, errors: "deque[str]") -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        errors.append(line.decode(errors="replace").rstrip())
