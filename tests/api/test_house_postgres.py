"""A house whose store is on a PostgreSQL server: the same promises, its server's death included."""

import asyncio
from pathlib import Path

import postgres as pg
import pytest
from service_support import Client, adapter, house

from plait.core.errors import StoreError


async def test_it_goes_on_where_the_store_says(
    tmp_path: Path, byte_model: Path, postgres: pg.PostgresServer
) -> None:
    url = postgres.empty()
    async with house(tmp_path / "one", byte_model, database=url) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        first = await one.gradient(1)
        answer = await one.get(first)
        await one.get(await one.step())
        await one.get(await one.gradient(2))
    async with house(tmp_path / "one", byte_model, database=url) as h:
        one.house = h
        assert await one.get(first) == answer
        assert (await one.get(await one.step())).version == 2
        there = adapter(h, one.model_id)
    async with house(tmp_path / "two", byte_model) as h:
        two = await Client.open(h)
        await two.create(byte_model)
        for seed in (1, 2):
            await two.gradient(seed)
            last = await two.step()
        await two.get(last)
        assert adapter(h, two.model_id) == there
    assert not (tmp_path / "one" / "plait.db").exists()


async def test_a_server_that_dies_and_comes_back(tmp_path: Path, byte_model: Path) -> None:
    """What is asked meanwhile is refused; what was under way ends when it is back."""
    if not pg.BINARIES:
        pytest.skip(pg.ABSENT)
    server = await asyncio.to_thread(pg.PostgresServer)
    try:
        await asyncio.to_thread(server.start)
        async with house(tmp_path, byte_model, database=server.url("public")) as h:
            one = await Client.open(h)
            await one.create(byte_model)
            await one.gradient(1)
            assert (await one.get(await one.step())).version == 1
            await asyncio.to_thread(server.kill)
            with pytest.raises(StoreError, match="cannot be reached"):
                await one.gradient(2)
            await asyncio.to_thread(server.start, server.port)
            one.seq -= 1
            await one.gradient(2)
            assert (await one.get(await one.step())).version == 2
    finally:
        await asyncio.to_thread(server.close)
