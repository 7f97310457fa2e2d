"""Serving: an edge on a real socket, in a thread of this process with a loop of its own."""

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from edge_support import SOON_S, Edge, edge

from plait.core.ids import TenantId
from plait.service.house import House
from plait.service.wire import BoundedHttp

TENANTS = itertools.count()
"""Tests share a house: each has tenants of its own."""


@dataclass(kw_only=True)
class Served:
    """What is served, and where."""

    url: str
    port: int
    key: str
    """An operator's."""
    edge: Edge
    base_model: str
    loop: asyncio.AbstractEventLoop

    @property
    def house(self) -> House:
        return self.edge.house

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the server's loop, for a test without one."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SOON_S)

    async def new_key(self, tenant: str) -> str:
        """A key of a new tenant, for a test in another loop."""
        issued = asyncio.run_coroutine_threadsafe(self._issue(tenant), self.loop)
        async with asyncio.timeout(SOON_S):
            return await asyncio.wrap_future(issued)

    def new_key_now(self, tenant: str) -> str:
        """The same for a test without a loop."""
        key: str = self.call(self._issue(tenant))
        return key

    async def _issue(self, tenant: str) -> str:
        tenant_id = TenantId(f"{tenant}-{next(TENANTS)}")
        await self.house.access.put_tenant(tenant_id, name=tenant)
        return (await self.house.access.issue(tenant_id)).key


@contextlib.contextmanager
def served(directory: Path, model: Path, **over: Any) -> Iterator[Served]:
    """A house, on the scripted engine unless told otherwise, served until the block ends; what
    fails there fails here."""
    begun: list[tuple[Served, uvicorn.Server]] = []
    failed: list[BaseException] = []
    ready = threading.Event()

    async def run() -> None:
        async with edge(directory, model, **over) as opened:
            with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
                config = uvicorn.Config(
                    opened.app,
                    http=BoundedHttp,
                    ws="none",
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                    timeout_graceful_shutdown=2,
                )
                server = uvicorn.Server(config)
                server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
                port = listener.getsockname()[1]
                told = Served(
                    url=f"http://127.0.0.1:{port}",
                    port=port,
                    key=(await opened.access.issue(TenantId("local"), admin=True)).key,
                    edge=opened,
                    base_model=str(model),
                    loop=asyncio.get_running_loop(),
                )
                begun.append((told, server))
                ready.set()
                await server.serve([listener])

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # told to the test
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=main, name="served")
    thread.start()
    assert ready.wait(SOON_S), "the service did not start"
    if failed:
        raise failed[0]
    told, server = begun[0]
    try:
        yield told
    finally:
        server.should_exit = True
        thread.join(SOON_S)
        assert not thread.is_alive(), "the service did not stop"
    if failed:
        raise failed[0]
