"""Process: the parent's end of one grader process: start it, ask it, kill it.

How it is started and ended with all that it has started: ``cluster.child``. A process that was
killed is never used again.
"""

import asyncio
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from plait.cluster.child import Child, ChildDied
from plait.core.errors import RewardError

MAX_REPLY_BYTES = 64 * 2**20
"""A larger reply is a fault, not a score."""
START_S = 60.0
"""Starting Python on a busy small machine."""
LOAD_S = 120.0
"""Importing a grader's modules: sympy alone takes seconds on a loaded machine."""


class GraderProcess:
    """One live grader process; belongs to one event loop and serves one request at a time."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._loaded: set[str] = set()
        self._n_asked = 0

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

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
        process = cls(
            await Child.start("plait.rewards.worker", reads=sys_path, log=log, sandboxed=sandboxed)
        )
        try:
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
        """The reply to one request; TimeoutError, ChildDied, or RewardError with what it raised.

        After any but the last, the process must be killed.
        """
        async with asyncio.timeout(deadline_s):
            return await self._ask(request)

    async def kill(self) -> None:
        """End the process and everything that it has started, and collect it."""
        await self._child.kill()

    async def _ask(self, request: dict[str, Any]) -> Any:
        try:
            body = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # columns hold a user's objects, which may raise anything
            raise RewardError(f"a column cannot be sent to a process: {error}") from error
        self._n_asked += 1
        self._child.send(self._n_asked, body)
        await self._child.drained()
        number, said = await self._child.read(MAX_REPLY_BYTES)
        if number != self._n_asked:
            raise ChildDied("it answered another request: does it use plait's own channel?")
        try:
            reply = json.loads(said)
        except (ValueError, RecursionError) as error:
            raise ChildDied(f"its reply cannot be read: {error}") from error
        if "error" in reply:
            raise RewardError(reply["error"])
        return reply.get("value")
