"""The writer thread: order, answers, errors."""

import asyncio
from pathlib import Path

import pytest

from plait.core.errors import StoreError
from plait.core.ids import LOCAL_TENANT, RunId
from plait.store.store import Store, Writer

RUN = RunId("r")


async def test_calls_are_carried_out_in_the_order_of_asking(tmp_path: Path) -> None:
    writer = Writer()
    with Store.at(tmp_path / "s.db") as store:
        await writer.call(
            store.runs.create, RUN, tenant_id=LOCAL_TENANT, name="r", spec={}, now=1.0
        )
        accepted = await asyncio.gather(
            *(writer.call(store.mutations.accept, RUN, n, "create", now=1.0) for n in range(1, 30))
        )
        assert all(a.new for a in accepted)
        writer.close()


async def test_errors_reach_the_caller_and_the_thread_lives_on(tmp_path: Path) -> None:
    writer = Writer()
    with Store.at(tmp_path / "s.db") as store:
        with pytest.raises(StoreError, match="no run r"):
            await writer.call(store.runs.get, RUN)
        assert await writer.call(store.runs.list) == []
        writer.close()


async def test_a_cancelled_caller_does_not_undo_the_write(tmp_path: Path) -> None:
    writer = Writer()
    with Store.at(tmp_path / "s.db") as store:
        store.runs.create(RUN, tenant_id=LOCAL_TENANT, name="r", spec={}, now=1.0)
        task = asyncio.create_task(writer.call(store.mutations.accept, RUN, 1, "create", now=1.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        writer.close()
        assert store.mutations.last_seq(RUN) == 1
