"""Calls: how a sample's query reaches the tool: at once, or blocked with its neighbours'."""

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from plait.core.errors import EnvironmentFailure
from plait.envs.search.barrier import Barrier
from plait.envs.search.config import SearchConfig
from plait.envs.tools.shared import Lease, lease

RETRIEVER = "plait.envs.tools.retriever:Retriever"

Docs = Sequence[Mapping[str, Any]]
"""``{"id", "text", "score"}``, best first."""


class Line(Protocol):
    """One sample's way to the tool."""

    async def ready(self) -> None:
        """Wait until the tool runs; EnvironmentFailure if it cannot."""
        ...

    async def ask(self, query: str) -> Docs:
        """Documents for a query; EnvironmentFailure if the tool fails or is late."""
        ...

    def close(self) -> None:
        """The sample asks no more; others need not wait for it. Again: no effect."""
        ...


class Switchboard:
    """Lines for all samples of one source, and the tool they share."""

    def __init__(self, config: SearchConfig) -> None:
        self._config = config
        self._lease: Lease | None = None
        self._barriers: dict[tuple[str, int], Barrier] = {}

    async def ready(self) -> None:
        """Wait until the tool runs; the first time on a machine it builds its index."""
        await self._tool().tool.ready()

    def line(self, split: str, index: int) -> Line:
        """A line for one sample of problem ``index``."""
        if self._config.calls == "sample":
            return _Direct(self)
        key = (split, index if self._config.calls == "group" else -1)
        for other in [k for k, b in self._barriers.items() if b.idle and k != key]:
            del self._barriers[other]
        if key not in self._barriers:
            self._barriers[key] = Barrier(self.ask_all, patience_s=self._config.patience_s)
        return _Blocked(self, self._barriers[key])

    async def ask(self, query: str) -> Docs:
        """One call, after the declared latency."""
        await asyncio.sleep(self._config.latency_s)
        docs: Docs = await self._tool().tool.call(
            self._request(query), deadline_s=self._config.deadline_s
        )
        return docs

    async def ask_all(self, queries: Sequence[str]) -> Sequence[Docs | EnvironmentFailure]:
        """One batch, after the declared latency."""
        await asyncio.sleep(self._config.latency_s)
        return await self._tool().tool.call_many(
            [self._request(q) for q in queries], deadline_s=self._config.deadline_s
        )

    async def aclose(self) -> None:
        """Fail who still waits and give the tool back."""
        for barrier in self._barriers.values():
            await barrier.aclose()
        if self._lease is not None:
            await self._lease.aclose()

    def _tool(self) -> Lease:
        if self._lease is None:
            config = {"passages": self._config.passages}
            self._lease = lease(RETRIEVER, config, name="search")
        return self._lease

    def _request(self, query: str) -> dict[str, Any]:
        return {"query": query, "k": self._config.top_k}


class _Direct:
    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard

    async def ready(self) -> None:
        await self._switchboard.ready()

    async def ask(self, query: str) -> Docs:
        return await self._switchboard.ask(query)

    def close(self) -> None:
        """Nobody waits for it."""


class _Blocked:
    def __init__(self, switchboard: Switchboard, barrier: Barrier) -> None:
        self._switchboard = switchboard
        self._barrier = barrier
        self._member = barrier.join()
        # A sample that is dropped without a last word must not keep its neighbours waiting.
        loop = asyncio.get_running_loop()
        weakref.finalize(self, _leave, barrier, self._member, loop)

    async def ready(self) -> None:
        await self._switchboard.ready()

    async def ask(self, query: str) -> Docs:
        docs: Docs = await self._barrier.ask(self._member, query)
        return docs

    def close(self) -> None:
        self._barrier.leave(self._member)


def _leave(barrier: Barrier, member: int, loop: asyncio.AbstractEventLoop) -> None:
    """Finalizers run in whatever thread the collector does; a barrier belongs to its loop."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(barrier.leave, member)
