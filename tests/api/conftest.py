"""The door of the Tinker API for tests: over a house in memory, and over the real one."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
from fake_app import make_app
from fake_house import FakeHouse
from httpx import ASGITransport, AsyncClient
from serving import Served
from tinker_support import SOON_S, URL, Door


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
    """A real house on the scripted engine."""
    with serving.served(tmp_path_factory.mktemp("house"), byte_model) as told:
        yield told


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
