"""Losses: what a worker that dies under samples costs, over real processes."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import slow_engine

from plait.core.errors import RunEnded, WorkerLost
from plait.core.ids import RunId, WorkerId
from plait.core.operations import Datum, SampleResult, SamplingParams
from plait.core.runs import Stage
from plait.policies.registry import make
from plait.runtime import messages as m
from plait.runtime import pool
from plait.runtime.client import RunClient
from plait.runtime.session import Session
from plait.runtime.settings import Settings

SOON_S = 30.0
ROLLOUT = WorkerId("rollout-0")
pytestmark = pytest.mark.usefixtures("engine_path")


class Spans:
    """A journal that knows for which runs a rollout worker has done something."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.rolled: set[RunId] = set()
        self.news = asyncio.Event()

    def span(self, worker: object, span: m.Span) -> None:
        if span.kind == "rollout":
            self.rolled |= span.tokens_by_run.keys()
            self.news.set()

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None:
        self.kinds.append(kind)
        self.news.set()

    def keeps(self, kind: str) -> bool:
        return True

    def decision(self, kind: str, view: object, state: object, plan: object) -> None: ...

    async def rolling(self, *runs: str) -> None:
        """Wait until samples of these runs are in the middle of being drawn."""
        self.rolled.clear()
        async with asyncio.timeout(SOON_S):
            while not self.rolled >= {RunId(r) for r in runs}:
                self.news.clear()
                await self.news.wait()

    async def happened(self, kind: str, times: int) -> None:
        async with asyncio.timeout(SOON_S):
            while self.kinds.count(kind) < times:
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def spans() -> Spans:
    return Spans()


@pytest.fixture
async def session(tmp_path: Path, byte_model: Path, spans: Spans) -> AsyncIterator[Session]:
    async with Session(
        tmp_path / "a",
        model=str(byte_model),
        sharing=make("plait"),
        settings=Settings(engine=slow_engine.ENGINE, kv_blocks=64, cores=2),
        journal=spans,
    ) as s:
        yield s


def draw(run: RunClient, max_tokens: int = 100, first: int = 5) -> asyncio.Task[SampleResult]:
    params = SamplingParams(max_tokens=max_tokens, seed=3, ignore_eos=True)
    return asyncio.create_task(run.sample((first, 6, 7), params))


def kill(session: Session) -> None:
    session.head.pool.workers[ROLLOUT].kill()


async def test_workers_killed_twice_under_long_samples_answer_them_the_same(
    session: Session, spans: Spans
) -> None:
    one, two = await session.create_run("one"), await session.create_run("two")
    quiet = [await draw(one), await draw(two)]
    asked = [draw(one), draw(two)]
    for _ in range(2):
        await spans.rolling("one", "two")
        kill(session)
        await spans.happened("worker_lost", 1)
        spans.kinds.clear()
    assert await asyncio.gather(*asked) == quiet
    assert len(quiet[0].samples[0].tokens) == 100


async def test_a_sample_that_kills_workers_fails_and_its_neighbour_does_not(
    session: Session, spans: Spans
) -> None:
    good, bad = await session.create_run("good"), await session.create_run("bad")
    quiet = await draw(good)
    asked = draw(good)
    await spans.rolling("good")
    with pytest.raises(WorkerLost, match="samples of run bad"):
        await draw(bad, first=slow_engine.POISON)
    assert await asked == quiet
    assert len((await draw(bad, max_tokens=3)).samples) == 1  # its other samples are welcome


async def test_an_ended_run_refuses_what_is_being_drawn_and_leaves_the_others_alone(
    session: Session, spans: Spans
) -> None:
    bad, good = await session.create_run("bad"), await session.create_run("good")
    quiet = await draw(good)
    waiting, beside = draw(bad, max_tokens=200), draw(good)
    await spans.rolling("bad", "good")
    await session.end_run("bad", Stage.CANCELLED, "not wanted any more")
    with pytest.raises(RunEnded, match="not wanted"):
        await waiting
    with pytest.raises(RunEnded, match="cancelled"):
        await bad.forward([])
    assert await beside == quiet


async def test_a_worker_that_cannot_start_is_tried_again(
    session: Session, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await session.create_run("one")
    asked = draw(run)
    await spans.rolling("one")
    make_handle, failures = pool.WorkerHandle, iter((True, True, False))

    def sometimes(*args: object, **kwargs: object) -> object:
        if next(failures):
            raise OSError("cannot allocate memory")
        return make_handle(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(pool, "WorkerHandle", sometimes)
    kill(session)
    async with asyncio.timeout(SOON_S):
        assert len((await asked).samples[0].tokens) == 100


async def test_after_giving_up_nothing_waits_for_ever(
    session: Session, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await session.create_run("one")
    asked = draw(run)
    await spans.rolling("one")

    def never(*args: object, **kwargs: object) -> object:
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(pool, "WorkerHandle", never)
    monkeypatch.setattr(pool, "RESTART_WAIT_S", 0.0)
    kill(session)
    async with asyncio.timeout(SOON_S):
        with pytest.raises(RunEnded, match="gave up after 5 restarts"):
            await asked
        with pytest.raises(WorkerLost, match="cannot allocate memory"):
            await session.create_run("late")


async def test_cache_use_is_accounted_for_before_the_last_sample_is_answered(
    session: Session,
) -> None:
    run = await session.create_run("one")
    async with run.rollout(4):
        await draw(run, max_tokens=8)
        assert run.facts.kv_block_s > 0
        assert run.facts.tokens >= 8


async def test_sending_to_a_busy_worker_does_not_hold_the_loop(session: Session) -> None:
    run = await session.create_run("one")
    big = tuple(range(200)) * 5_000
    datum = Datum(
        input_tokens=big,
        target_tokens=big,
        mask=[True] * len(big),
        inputs={},
    )
    handle = session.head.pool.workers[WorkerId("train-0")]
    os.kill(handle.pid, signal.SIGSTOP)  # as in the middle of a long micro-batch
    goes_on = threading.Timer(SOON_S, os.kill, (handle.pid, signal.SIGCONT))
    goes_on.start()
    try:
        asking = asyncio.create_task(run.forward([datum]))
        await asyncio.sleep(0.1)
        assert goes_on.is_alive()
        asking.cancel()
    finally:
        goes_on.cancel()
        os.kill(handle.pid, signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_rollout_whose_samples_queue_for_blocks_counts_as_throttled(
    session: Session,
) -> None:
    run, other = await session.create_run("one"), await session.create_run("two")
    async with run.rollout(4), other.rollout(4):
        await draw(other, max_tokens=4)
        # 64 blocks; each of these comes to hold seven.
        await asyncio.gather(*(draw(run, first=i) for i in range(10)))
        assert run.facts.kv_throttled
        assert not other.facts.kv_throttled


async def test_two_rollout_workers_draw_what_one_draws_and_one_may_die(
    tmp_path: Path, byte_model: Path, session: Session
) -> None:
    alone = await session.create_run("one")
    want = [await draw(alone, first=first) for first in range(5, 11)]
    spans = Spans()
    settings = Settings(engine=slow_engine.ENGINE, kv_blocks=128, cores=2, rollout_workers=2)
    async with Session(
        tmp_path / "b",
        model=str(byte_model),
        sharing=make("plait"),
        settings=settings,
        journal=spans,
    ) as two:
        run = await two.create_run("one")
        asked = [draw(run, first=first) for first in range(5, 11)]
        await spans.rolling("one")
        assert {w.worker_id for w in two.head.samples._workers.values()} == {
            ROLLOUT,
            WorkerId("rollout-1"),
        }
        at = {f.worker for f in two.head.samples._in_flight.values()}
        assert len(at) == 2
        kill(two)
        assert await asyncio.gather(*asked) == want
