"""Moves over real processes: samples go on at another worker, whatever dies meanwhile."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import slow_engine

from plait.core.ids import RunId, WorkerId
from plait.core.operations import SampleResult, SamplingParams
from plait.core.plan import MovesPlan
from plait.core.view import MovesView
from plait.policies.registry import make
from plait.runtime import messages as m
from plait.runtime.client import RunClient
from plait.runtime.samples import Samples
from plait.runtime.session import Session
from plait.runtime.settings import Settings

SOON_S = 60.0
FIRST, SECOND = WorkerId("rollout-0"), WorkerId("rollout-1")
N, LONG, SHORT = 24, 60, 12
"""Short ones last until all have been asked for, even where the test is held up in between."""
pytestmark = pytest.mark.usefixtures("engine_path")


class Seen:
    """A journal that keeps what was decided about moves."""

    def __init__(self) -> None:
        self.moves: list[tuple[MovesView, MovesPlan]] = []
        self.kinds: list[str] = []

    def span(self, worker: object, span: m.Span) -> None: ...

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None:
        self.kinds.append(kind)

    def keeps(self, kind: str) -> bool:
        return True

    def decision(self, kind: str, view: Any, state: object, plan: Any) -> None:
        if kind == "moves":
            self.moves.append((view, plan))


@asynccontextmanager
async def launched(
    directory: Path, model: Path, *, workers: int = 2, elastic: bool = False, **over: Any
) -> AsyncIterator[tuple[Session, RunClient, Seen]]:
    seen = Seen()
    options = over.pop("options", {})
    settings = Settings(
        **{"engine": slow_engine.ENGINE, "kv_blocks": 2048, "cores": 2} | over,
        rollout_workers=workers,
        elastic=elastic,
    )
    async with Session(
        directory,
        model=str(model),
        sharing=make("plait", **options),
        settings=settings,
        journal=seen,
    ) as session:
        yield session, await session.create_run("one"), seen


def draw(run: RunClient, long: int = LONG) -> list[asyncio.Task[SampleResult]]:
    """Long samples and short ones in turns, which two workers share out among them: one has all
    that is left when the short ones have ended."""
    tasks = []
    for i in range(N):
        for first, n_tokens in ((20 + i, long), (120 + i, SHORT)):
            params = SamplingParams(max_tokens=n_tokens, seed=i, ignore_eos=True)
            tasks.append(asyncio.create_task(run.sample((first, 6, 7), params)))
    return tasks


async def answers(run: RunClient, long: int = LONG) -> list[SampleResult]:
    async with asyncio.timeout(SOON_S):
        return list(await asyncio.gather(*draw(run, long)))


async def stay(directory: Path, model: Path) -> list[SampleResult]:
    async with launched(directory, model, workers=1) as (_, run, _):
        return await answers(run)


@pytest.fixture(scope="module")
def stayed(
    byte_model: Path, tmp_path_factory: pytest.TempPathFactory, engine_path: None
) -> list[SampleResult]:
    """What one worker draws."""
    return asyncio.run(stay(tmp_path_factory.mktemp("stayed"), byte_model))


async def test_half_of_a_tail_goes_to_the_idle_worker_and_draws_the_same(
    tmp_path: Path, byte_model: Path, stayed: list[SampleResult]
) -> None:
    async with launched(tmp_path, byte_model) as (_, run, seen):
        assert await answers(run) == stayed
    view, plan = seen.moves[0]
    assert (plan.source, plan.target) == (FIRST, SECOND)
    assert N // 3 <= len(plan.op_ids) <= N // 2
    for view, plan in seen.moves:
        assert make("plait").moves.decide(view, {}, 0.0)[0] == plan


async def test_with_lent_cores_only_what_has_no_room_goes(
    tmp_path: Path, byte_model: Path, stayed: list[SampleResult]
) -> None:
    async with launched(tmp_path / "room", byte_model, elastic=True) as (_, run, seen):
        assert await answers(run) == stayed
        assert seen.moves == []
    async with launched(tmp_path / "none", byte_model, elastic=True, max_seqs=6) as (_, run, seen):
        assert await answers(run) == stayed
        assert seen.moves


async def test_switched_off_everything_ends_where_it_began(
    tmp_path: Path, byte_model: Path, stayed: list[SampleResult]
) -> None:
    async with launched(tmp_path, byte_model, options={"moves": "off"}) as (_, run, seen):
        assert await answers(run) == stayed
        assert seen.moves == []


@pytest.mark.parametrize("victims", [(FIRST,), (SECOND,), (FIRST, SECOND)])
@pytest.mark.parametrize("moment", ["move", "moved"])
@pytest.mark.parametrize("before", [True, False])
async def test_a_worker_killed_in_the_middle_of_a_move_loses_no_sample(
    moment: str,
    before: bool,
    victims: tuple[WorkerId, ...],
    tmp_path: Path,
    byte_model: Path,
    stayed: list[SampleResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before or after it is asked to give samples up; before or after the other is given the
    first of them."""
    usual, killed = getattr(Samples, moment), []
    async with launched(tmp_path, byte_model) as (session, run, seen):

        def kill() -> None:
            if not killed:
                for worker_id in victims:
                    killed.append(session.head.pool.workers[worker_id].pid)
                    os.kill(killed[-1], signal.SIGKILL)

        def deadly(*args: Any, **keys: Any) -> None:
            if before:
                kill()
            usual(*args, **keys)
            kill()

        monkeypatch.setattr(Samples, moment, deadly)
        assert await answers(run) == stayed
        assert len(killed) == len(victims)
        assert seen.kinds.count("worker_lost") == len(victims)


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [True, False])
async def test_real_samples_go_on_as_if_they_had_stayed(
    tmp_path: Path, deterministic: bool
) -> None:
    drawn = []
    for workers in (1, 2):
        async with launched(
            tmp_path / str(workers),
            Path("tiny"),
            workers=workers,
            engine="torch",
            deterministic=deterministic,
        ) as (_, run, seen):
            drawn.append(await answers(run, long=150))
        assert bool(seen.moves) == (workers > 1)
    if deterministic:
        assert drawn[0] == drawn[1]
    tokens = [[s.tokens for result in one for s in result.samples] for one in drawn]
    assert tokens[0] == tokens[1]
