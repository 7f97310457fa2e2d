"""The door of the Tinker API for tests: over a house in memory, and over the real one."""

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from edge_support import edge
from fake_app import make_app
from fake_house import FakeHouse
from httpx import ASGITransport, AsyncClient
from tinker_support import SOON_S, URL, Door

from plait.core.ids import TenantId
from plait.service.house import House
from plait.service.tinker_api.codec import TinkerCodec

TENANTS = itertools.count()
"""Tests share a real house: each has tenants of its own."""


@dataclass(kw_only=True)
class Served:
    """A house that is served over HTTP."""

    url: str
    new_key: Callable[[str], Awaitable[str]]
    """A key of a new tenant."""
    house: House


@pytest.fixture
def fake(tmp_path: Path, byte_model: Path) -> FakeHouse:
    """A house in memory."""
    return FakeHouse(tmp_path, byte_model)


class Standing:
    """Stands for the house of the test that runs: routes take long to make, and are made once."""

    def __init__(self) -> None:
        self.house: FakeHouse | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.house, name)


@pytest.fixture(scope="session")
def standing() -> tuple[Standing, Any]:
    """The app of all houses in memory, and what it serves."""
    stand = Standing()
    return stand, make_app(stand, secret=b"secret", wall=lambda: stand.now)  # type: ignore[arg-type]


@pytest.fixture
def over_fake(standing: tuple[Standing, Any]) -> Callable[[FakeHouse], Door]:
    """Makes the door over a house in memory."""

    def make(house: FakeHouse) -> Door:
        stand, app = standing
        stand.house = house

        async def client(tenant: str) -> AsyncClient:
            key = {"X-API-Key": f"tml-{tenant}"}
            transport = ASGITransport(app)
            return AsyncClient(transport=transport, base_url=URL, headers=key, timeout=SOON_S)

        return Door(client=client, base_model=house.name)

    return make


@pytest.fixture
def fake_door(fake: FakeHouse, over_fake: Callable[[FakeHouse], Door]) -> Door:
    """The door over the house in memory."""
    return over_fake(fake)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, byte_model: Path) -> Iterator[Served]:
    """A real house on the scripted engine, served in a thread of its own."""
    running: asyncio.Future[Any] | Any = None
    ready, failed, over = threading.Event(), [], []

    async def serve() -> None:
        nonlocal running
        folder = tmp_path_factory.mktemp("house")
        async with edge(folder, byte_model, codec=TinkerCodec(), sampling=None) as e:
            with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
                config = uvicorn.Config(e.app, log_level="warning", lifespan="off")
                server = uvicorn.Server(config)
                server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                running = (e, url, asyncio.get_running_loop())
                over.append(server)
                ready.set()
                await server.serve([listener])

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
            ready.set()
            raise

    thread = threading.Thread(target=run, name="house")
    thread.start()
    ready.wait()
    assert not failed, failed
    opened, url, loop = running

    async def issue(tenant: str) -> str:
        tenant_id = TenantId(f"{tenant}-{next(TENANTS)}")
        await opened.access.put_tenant(tenant_id, name=tenant)
        return (await opened.access.issue(tenant_id)).key

    async def new_key(tenant: str) -> str:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(issue(tenant), loop))

    yield Served(url=url, new_key=new_key, house=opened.house)
    over[0].should_exit = True
    thread.join()


@pytest.fixture(params=["memory", "real"])
async def door(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    byte_model: Path,
    over_fake: Callable[[FakeHouse], Door],
) -> AsyncIterator[Door]:
    """The door over each kind of house."""
    if request.param == "memory":
        yield over_fake(FakeHouse(tmp_path, byte_model, name=str(byte_model)))
        return
    served: Served = request.getfixturevalue("served")
    keys: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as clients:

        async def client(tenant: str) -> AsyncClient:
            if tenant not in keys:
                keys[tenant] = await served.new_key(tenant)
            headers = {"X-API-Key": keys[tenant]}
            made = AsyncClient(base_url=served.url, headers=headers, timeout=SOON_S)
            return await clients.enter_async_context(made)

        yield Door(client=client, base_model=str(byte_model), house=served.house)
