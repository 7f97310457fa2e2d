"""The group writer on every database: one commit for many, and one's failure is its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
import sqlalchemy as sa

from plait.core.errors import NotFound, StoreError
from plait.core.ids import LOCAL_TENANT, RunId
from plait.store.requests import Asked, RequestRow
from plait.store.store import Store
from plait.store.writer import GroupWriter

RUN, MODEL = RunId("run-1"), "s-1:train:0"


@pytest.fixture
async def writer(store: Store) -> AsyncIterator[GroupWriter]:
    store.sessions.open("s-1", tenant_id=LOCAL_TENANT, told={}, now=1.0)
    writer = GroupWriter(store.database)
    yield writer
    await asyncio.to_thread(writer.close)


class Gate:
    """Holds the writer's thread, so that calls gather behind it."""

    def __init__(self, writer: GroupWriter) -> None:
        self._writer, self._open, self._held = writer, threading.Event(), threading.Event()

    async def __aenter__(self) -> None:
        def hold() -> None:
            self._held.set()
            self._open.wait(30)

        self._task = asyncio.create_task(self._writer.call(hold))
        await asyncio.to_thread(self._held.wait, 30)

    async def __aexit__(self, *_: object) -> None:
        self._open.set()
        await self._task


def ask(store: Store, seq: int, body: bytes = b"x") -> Asked:
    return store.requests.accept(
        MODEL, seq, tenant_id=LOCAL_TENANT, session_id="s-1", kind="k", body=body, now=1.0
    )


async def gather(writer: GroupWriter, *calls: Callable[[], object]) -> list[object]:
    """Make all calls while the thread is held, so that they share a group."""
    async with Gate(writer):
        tasks = [asyncio.create_task(writer.write(call)) for call in calls]
        await asyncio.sleep(0)
    return list(await asyncio.gather(*tasks, return_exceptions=True))


@contextmanager
def commits(store: Store) -> Iterator[list[int]]:
    """Counts the transactions that were committed."""
    seen: list[int] = []
    engine = store.database._engine

    def count(connection: object) -> None:
        seen.append(1)

    sa.event.listen(engine, "commit", count)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "commit", count)


async def test_calls_that_wait_share_one_commit(store: Store, writer: GroupWriter) -> None:
    with commits(store) as seen:
        answers = await gather(writer, *(partial(ask, store, n) for n in range(50)))
        assert len(seen) == 1
    assert all(isinstance(a, Asked) and a.new for a in answers)
    assert [row.seq for row in store.requests.after(MODEL)] == list(range(50))


async def test_one_call_that_fails_is_undone_alone(store: Store, writer: GroupWriter) -> None:
    def half() -> None:
        with store.database.write():
            ask(store, 7)
            store.requests.finish(MODEL, 999, b"", now=1.0)

    def raises() -> None:
        ask(store, 8)
        raise ZeroDivisionError

    with commits(store) as seen:
        answers = await gather(writer, lambda: ask(store, 1), half, raises, lambda: ask(store, 2))
        assert len(seen) == 1
    assert isinstance(answers[1], NotFound)
    assert isinstance(answers[2], ZeroDivisionError)
    assert [r.seq for r in store.requests.after(MODEL)] == [1, 2]


async def test_what_the_database_refuses_does_not_take_the_others_with_it(
    store: Store, writer: GroupWriter
) -> None:
    def refused() -> None:
        store.requests.accept(
            "m", 1, tenant_id=LOCAL_TENANT, session_id="ghost", kind="k", body=b"", now=1.0
        )

    answers = await gather(writer, lambda: ask(store, 1), refused, lambda: ask(store, 2))
    assert isinstance(answers[1], StoreError)
    for answer in (answers[0], answers[2]):
        assert isinstance(answer, Asked)
        assert answer.new
    assert [r.seq for r in store.requests.after(MODEL)] == [1, 2]


async def test_an_answer_is_given_when_it_is_durable(
    url: str, store: Store, writer: GroupWriter
) -> None:
    """Others see what was answered, and nothing of a group that has not been committed."""
    with Store(url) as other, ThreadPoolExecutor(1) as elsewhere:

        def look() -> RequestRow | None:
            return elsewhere.submit(other.requests.find, MODEL, 1).result(30)

        _, seen, own = await gather(
            writer, lambda: ask(store, 1), look, lambda: store.requests.find(MODEL, 1)
        )
        assert seen is None
        assert isinstance(own, RequestRow), "the group itself sees what it wrote"
        assert look() is not None


async def test_calls_are_carried_out_in_the_order_of_asking(
    store: Store, writer: GroupWriter
) -> None:
    async with Gate(writer):
        tasks = [
            asyncio.create_task(
                (writer.call if n % 7 == 0 else writer.write)(
                    store.mutations.accept, RUN, n, "create", now=1.0
                )
            )
            for n in range(1, 60)
        ]
        await asyncio.sleep(0)
    assert all(accepted.new for accepted in await asyncio.gather(*tasks))


async def test_a_call_by_itself_is_in_no_transaction(store: Store, writer: GroupWriter) -> None:
    """What it wrote stays although it raised: its transactions are its own."""

    def write_then_raise() -> None:
        ask(store, 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await writer.call(write_then_raise)
    assert store.requests.find(MODEL, 1) is not None


async def test_a_cancelled_caller_does_not_undo_the_write(
    store: Store, writer: GroupWriter
) -> None:
    async with Gate(writer):
        task = asyncio.create_task(writer.write(ask, store, 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await writer.call(lambda: None)
    assert store.requests.find(MODEL, 1) is not None


async def test_closing_carries_out_what_waits_and_refuses_the_rest(
    store: Store, writer: GroupWriter
) -> None:
    async with Gate(writer):
        tasks = [asyncio.create_task(writer.write(ask, store, n)) for n in range(5)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(writer.close))
        await asyncio.to_thread(writer.closing.wait, 30)
        with pytest.raises(StoreError, match="closed"):
            await writer.write(ask, store, 9)
    await closing
    assert all(asked.new for asked in await asyncio.gather(*tasks))
    writer.close()


async def test_more_calls_than_a_group_takes(
    store: Store, writer: GroupWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.store.writer.MAX_GROUP", 10)
    with commits(store) as seen:
        await gather(writer, *(partial(ask, store, n) for n in range(25)))
        assert len(seen) == 3
