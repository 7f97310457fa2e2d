"""Tool process: calls to one tool that runs, and may hang or crash, in a process of its own.

Invariants:
- The process starts at the first ``ready`` or ``call``, which wait for it; a call's deadline runs
  from when the process was ready, so a first start that builds an index fails nobody.
- One batch runs at a time. Calls that arrive while one is running are answered as the next batch.
- Every call ends: with its reply, or with ``EnvironmentFailure`` that says why.
- A batch that runs for ``hang_s``, or for which nobody waits any more, has its process killed; a
  process that died is started again for the next batch. Calls lost with it that still have time are
  sent once more, each alone, so that one poisonous request fails alone.

Left to others: what the tool does (``target``), who shares it (``shared``).
"""

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.core.errors import EnvironmentFailure
from plait.envs.tools.spawn import ChildDied, Spawned, spawn

START_S = 900.0
"""Longest start: building a large index for the first time on a busy small machine."""
HANG_S = 60.0
"""Longest batch."""
ABANDONED_S = 1.0
"""Grace for a batch whose callers have all given up: most finish, and a restart costs seconds."""
MAX_BATCH = 64
"""Calls of one batch; more wait for the next, so that one batch stays well below ``HANG_S``."""
RETRY_START_S = 5.0
"""After a failed start, calls fail at once for so long instead of each trying it again."""
MAX_TRIES = 2


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    payload: str
    """The request as JSON."""
    reply: "asyncio.Future[Any]"
    tries: int = 0


@dataclass(slots=True, kw_only=True)
class ToolProcess:
    """A tool (``target``: ``module:Class``, see ``child.Tool``) for one event loop."""

    target: str
    config: Mapping[str, Any]
    name: str
    n_threads: int = 1
    start_s: float = START_S
    hang_s: float = HANG_S
    starts: int = 0
    """How often a process was started; above 1 it was restarted."""
    batches: int = 0
    _waiting: deque[_Call] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _child: Spawned | None = None
    _starting: "asyncio.Task[Spawned] | None" = None
    _pump: "asyncio.Task[None] | None" = None
    _failed_until_s: float = 0.0
    _failure: str = ""
    _closed: bool = False

    @property
    def pid(self) -> int | None:
        """Process id of the live process, if there is one."""
        return None if self._child is None else self._child.pid

    async def ready(self) -> None:
        """Wait until the process runs; EnvironmentFailure if it cannot start."""
        await self._ensure()

    async def call(self, payload: Any, *, deadline_s: float) -> Any:
        """The tool's reply to one request (a JSON value), within ``deadline_s``."""
        await self._ensure()
        call = _Call(payload=json.dumps(payload), reply=asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._wake.set()
        if self._pump is None:
            self._pump = asyncio.create_task(self._serve(), name=f"tool {self.name}")
        try:
            async with asyncio.timeout(deadline_s):
                return await call.reply
        except TimeoutError as error:
            raise EnvironmentFailure(
                f"the {self.name} tool did not answer within {deadline_s:g} s: "
                f"raise the environment's deadline_s or use fewer samples at once"
            ) from error

    async def call_many(self, payloads: Sequence[Any], *, deadline_s: float) -> list[Any]:
        """Replies to several requests, asked at once and so (up to MAX_BATCH) in one batch.

        An item is an EnvironmentFailure where its request failed.
        """
        await self._ensure()
        calls = (self.call(p, deadline_s=deadline_s) for p in payloads)
        replies = await asyncio.gather(*calls, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, EnvironmentFailure):
                raise reply
        return list(replies)

    async def aclose(self) -> None:
        """End the process; calls that still wait fail."""
        self._closed = True
        for task in (self._pump, self._starting):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._pump = self._starting = None
        for call in self._waiting:
            _fail(call, f"the {self.name} tool was closed")
        self._waiting.clear()
        if self._child is not None:
            child, self._child = self._child, None
            await child.end()

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # let the calls of this turn of the event loop join the batch
            if batch := self._take():
                try:
                    child = await self._ensure()
                except EnvironmentFailure as failure:
                    for call in batch:
                        _fail(call, str(failure))
                    continue
                await self._run(child, batch)
            else:
                self._wake.clear()

    def _take(self) -> list[_Call]:
        """The next batch: calls that were sent before go one by one."""
        batch: list[_Call] = []
        while self._waiting and len(batch) < MAX_BATCH:
            if self._waiting[0].reply.done():
                self._waiting.popleft()
            elif self._waiting[0].tries and batch:
                break
            else:
                batch.append(self._waiting.popleft())
                if batch[0].tries:
                    break
        return batch

    async def _run(self, child: Spawned, batch: list[_Call]) -> None:
        self.batches += 1
        for call in batch:
            call.tries += 1
        ask = asyncio.create_task(child.ask(f"[{','.join(c.payload for c in batch)}]"))
        callers = asyncio.create_task(asyncio.wait([c.reply for c in batch]))
        try:
            await asyncio.wait(
                [ask, callers], timeout=self.hang_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not ask.done() and callers.done():
                await asyncio.wait([ask], timeout=ABANDONED_S)
            if ask.done():
                self._deliver(batch, ask.result())
                return
            why = f"the {self.name} tool hung and was killed"
        except asyncio.CancelledError:  # aclose
            for call in batch:
                _fail(call, f"the {self.name} tool was closed")
            raise
        except ChildDied as died:
            why = f"the {self.name} tool's process ended ({died})"
        finally:
            for task in (ask, callers):
                task.cancel()
            await asyncio.wait([ask, callers])
        self._child = None
        await child.kill()
        for call in reversed(batch):
            if call.tries < MAX_TRIES and not call.reply.done():
                self._waiting.appendleft(call)
            else:
                _fail(call, why)

    def _deliver(self, batch: list[_Call], replies: list[dict[str, Any]]) -> None:
        for call, reply in zip(batch, replies, strict=True):
            if "error" in reply:
                _fail(call, f"the {self.name} tool refused a request: {reply['error']}")
            elif not call.reply.done():
                call.reply.set_result(reply["ok"])

    async def _ensure(self) -> Spawned:
        """The live process; concurrent callers share one start, which none of them can cancel."""
        if self._closed:
            raise EnvironmentFailure(f"the {self.name} tool was closed")
        if self._child is not None and self._child.alive:
            return self._child
        now_s = asyncio.get_running_loop().time()
        if self._starting is None:
            if now_s < self._failed_until_s:
                raise EnvironmentFailure(self._failure)
            self._starting = asyncio.create_task(self._start(), name=f"start {self.name}")
            # Nobody may be left to see how it ends when all who waited were cancelled.
            self._starting.add_done_callback(lambda t: t.cancelled() or t.exception())
        starting = self._starting
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():  # by aclose; our own task was not cancelled
                raise EnvironmentFailure(f"the {self.name} tool was closed") from None
            raise

    async def _start(self) -> Spawned:
        self.starts += 1
        try:
            self._child = await spawn(
                self.target, self.config, n_threads=self.n_threads, start_s=self.start_s
            )
            return self._child
        except ChildDied as died:
            self._failure = f"the {self.name} tool cannot start: {died}"
            self._failed_until_s = asyncio.get_running_loop().time() + RETRY_START_S
            raise EnvironmentFailure(self._failure) from died
        finally:
            self._starting = None


def _fail(call: _Call, why: str) -> None:
    if not call.reply.done():
        call.reply.set_exception(EnvironmentFailure(why))
