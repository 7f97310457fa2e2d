"""Middleware: who sends many large bodies takes one thread, and the others have theirs."""

import asyncio
import threading
from typing import Any

import pytest
import zstandard
from starlette.requests import Request

from plait.core.ids import TenantId
from plait.service import auth, middleware
from plait.service.limits import Limits, TenantLimits
from plait.service.middleware import Edge
from plait.service.ports import Who

SOON_S = 10.0
BODY = b'{"text": "' + b"x" * 1000 + b'"}'
PACKED = zstandard.ZstdCompressor().compress(BODY)


class Access:
    """Keys are the tenants' names."""

    def __init__(self) -> None:
        self.limits = Limits(lambda: 0.0)

    def caller(self, key: str) -> Who:
        self.limits.put(TenantId(key), TenantLimits())
        return Who(tenant_id=TenantId(key))


class Reading:
    """Bodies are read when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.go = threading.Event()
        self.n = 0
        self._real, loop = middleware._read, asyncio.get_running_loop()

        def read(*of: Any) -> bytes:
            self.n += 1
            loop.call_soon_threadsafe(self.begun.set)
            assert self.go.wait(SOON_S)
            return self._real(*of)

        monkeypatch.setattr(middleware, "_read", read)


async def post(edge: Edge, tenant: str, taken: list[str]) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/x",
        "query_string": b"",
        "headers": [(b"x-api-key", tenant.encode()), (b"content-encoding", b"zstd")],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": PACKED, "more_body": False}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    await edge(scope, receive, send)
    taken.append(tenant)


async def test_many_large_bodies_of_one_tenant_are_read_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert await Request(scope, receive).body() == BODY
        assert scope[auth.STATE].tenant_id in ("ann", "ben")

    edge = Edge(app, Access(), context=lambda: 0)  # type: ignore[arg-type]
    reading = Reading(monkeypatch)
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(post(edge, "ann", taken))
        await reading.begun.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert reading.n == 1
        reading.begun.clear()
        group.create_task(post(edge, "ben", taken))
        await reading.begun.wait()
        assert reading.n == 2, "another's is read at once"
        reading.go.set()
    assert len(taken) == 21
