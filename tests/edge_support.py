"""Edges for tests: an app in this process over a house on the scripted engine, and its clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from service_support import house

from plait.core.ids import TenantId
from plait.service.access import Access
from plait.service.app import create_app
from plait.service.house import House
from plait.service.limits import TenantLimits
from plait.service.tinker_api.codec import TinkerCodec

SOON_S = 60.0
URL = "http://plait.test"


@dataclass(kw_only=True)
class Edge:
    """An app that is served in this process."""

    house: House
    app: Any
    operator: httpx.AsyncClient
    """With the key of the local tenant."""

    @property
    def access(self) -> Access:
        return self.house.access

    async def tenant(self, name: str, **limits: Any) -> httpx.AsyncClient:
        """A tenant's client. It is closed with the edge."""
        tenant_id = TenantId(name)
        await self.access.put_tenant(tenant_id, name=name, limits=TenantLimits(**limits))
        return self.client((await self.access.issue(tenant_id)).key)

    def client(self, key: str | None, **over: Any) -> httpx.AsyncClient:
        """A client with a key, or without."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(
            transport=transport, base_url=URL, headers=headers, timeout=SOON_S, **over
        )


@asynccontextmanager
async def edge(directory: Path, model: Path, *, app: Any = {}, **over: Any) -> AsyncIterator[Edge]:  # noqa: B006
    """A house and its app, open."""
    over = {"sampling": None, "codec": TinkerCodec(), **over}
    async with house(directory, model, **over) as opened:
        key = await opened.access.ensure_local_key()
        if key is None:
            key = (await opened.access.issue(TenantId("local"), admin=True)).key
        served = create_app(opened, **app)
        async with lifespan(served):
            made = Edge(house=opened, app=served, operator=None)  # type: ignore[arg-type]
            made.operator = made.client(key)
            yield made


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """What a server does when it starts and stops an app."""
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan", "state": {}}, said.get, heard.put))
    await said.put({"type": "lifespan.startup"})
    assert (await heard.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await said.put({"type": "lifespan.shutdown"})
        assert (await heard.get())["type"] == "lifespan.shutdown.complete"
        await task


async def until(what: Callable[[], Awaitable[Any]], *, soon_s: float = SOON_S) -> Any:
    """Ask until the answer is true; the answer."""
    async with asyncio.timeout(soon_s):
        while not (answer := await what()):  # noqa: ASYNC110 - asked as an outside client would
            await asyncio.sleep(0.02)
    return answer


ROWS = "\n".join(json.dumps({"prompt": f"{i}?", "answer": "ab"[i % 2]}) for i in range(40))
"""Questions that random bytes answer now and then: the scripted engine learns from them."""


def job(name: str, **over: Any) -> dict[str, Any]:
    """A small job on ``ROWS``, which must come along as ``rows.jsonl``."""
    return {
        "name": name,
        "environment": {"name": "dataset", "file": "rows.jsonl"},
        "rewards": [{"name": "contains"}],
        "groups": 2,
        "samples": 8,
        "steps": 3,
        "limits": {"max_tokens": 64},
        **over,
    }
