"""A real house, on the scripted engine unless told otherwise, served from a thread of its own."""

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from edge_support import edge

from plait.core.ids import TenantId
from plait.service.house import House
from plait.service.tinker_api.codec import TinkerCodec

TENANTS = itertools.count()
"""Tests share a house: each has tenants of its own."""


@dataclass(kw_only=True)
class Served:
    """Where it is served, and the way to what is inside."""

    url: str
    house: House
    base_model: str
    loop: asyncio.AbstractEventLoop

    async def new_key(self, tenant: str) -> str:
        """A key of a new tenant, for a test in another loop."""
        return await asyncio.wrap_future(self._issue(tenant))

    def new_key_now(self, tenant: str) -> str:
        """The same for a test without a loop."""
        return self._issue(tenant).result()

    def _issue(self, tenant: str) -> Any:
        async def issue() -> str:
            tenant_id = TenantId(f"{tenant}-{next(TENANTS)}")
            await self.house.access.put_tenant(tenant_id, name=tenant)
            return (await self.house.access.issue(tenant_id)).key

        return asyncio.run_coroutine_threadsafe(issue(), self.loop)


@contextlib.contextmanager
def served(folder: Path, model: Path, **over: Any) -> Iterator[Served]:
    """Serve until the end of the block; what fails there fails here."""
    begun: list[tuple[Served, uvicorn.Server]] = []
    failed: list[BaseException] = []
    ready = threading.Event()

    async def serve() -> None:
        async with edge(folder, model, codec=TinkerCodec(), sampling=None, **over) as e:
            with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
                config = uvicorn.Config(e.app, log_level="warning", lifespan="off")
                server = uvicorn.Server(config)
                server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
                told = Served(
                    url=f"http://127.0.0.1:{listener.getsockname()[1]}",
                    house=e.house,
                    base_model=str(model),
                    loop=asyncio.get_running_loop(),
                )
                begun.append((told, server))
                ready.set()
                await server.serve([listener])

    thread = threading.Thread(target=_recorded(lambda: asyncio.run(serve()), failed, ready))
    thread.start()
    ready.wait()
    if failed:
        raise failed[0]
    told, server = begun[0]
    try:
        yield told
    finally:
        server.should_exit = True
        thread.join()
    assert not failed, failed


def _recorded(
    run: Callable[[], None], failed: list[BaseException], ready: threading.Event
) -> Callable[[], None]:
    def recorded() -> None:
        try:
            run()
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    return recorded
