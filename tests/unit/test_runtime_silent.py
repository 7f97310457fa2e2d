"""Workers that hang: one that is stopped, or gets on no more, is replaced and its work done again;
one that computes for long is left alone. Over real processes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import slow_trainer

from plait.cluster import pulse
from plait.core.errors import WorkerLost
from plait.core.ids import RunId, WorkerId
from plait.core.operations import AdamParams, Datum, SamplingParams
from plait.policies.registry import make
from plait.runtime import settings as settings_module
from plait.runtime.client import RunClient
from plait.runtime.session import Session
from plait.runtime.settings import Settings

SILENT_S = 4.0
STEP_LIMIT_S = 1.5
SOON_S = 60.0
ROLLOUT, TRAIN = WorkerId("rollout-0"), WorkerId("train-0")
ADAM = AdamParams(learning_rate=1e-2)
pytestmark = pytest.mark.usefixtures("engine_path")


class Losses:
    """A journal that knows why workers were lost."""

    def __init__(self) -> None:
        self.whys: list[str] = []

    def span(self, worker: object, span: object) -> None: ...

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None:
        if kind == "worker_lost":
            self.whys.append(f"{detail['worker']}: {detail['why']}")

    def keeps(self, kind: str) -> bool:
        return True

    def decision(self, kind: str, view: object, state: object, plan: object) -> None: ...


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
async def session(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    byte_model: Path,
    losses: Losses,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Session]:
    """Its parameter, if any, is the step limit."""
    monkeypatch.setattr(pulse, "SILENT_S", SILENT_S)
    monkeypatch.setattr(settings_module, "MIN_STEP_LIMIT_S", STEP_LIMIT_S)
    async with Session(
        tmp_path,
        model=str(byte_model),
        sharing=make("plait"),
        settings=Settings(
            engine=slow_trainer.ENGINE,
            kv_blocks=64,
            cores=2,
            step_limit_s=getattr(request, "param", 0.0),
        ),
        journal=losses,
    ) as opened:
        yield opened


def datum(first: int = 5) -> Datum:
    return Datum(input_tokens=(first, 6), target_tokens=(6, 7), mask=[True, True], inputs={})


async def learnt(run: RunClient) -> tuple[float, ...]:
    """What a run says after a step, which it then draws with."""
    await run.forward_backward([datum()], "cross_entropy")
    await run.optim_step(ADAM)
    await run.publish()
    params = SamplingParams(max_tokens=6, seed=3, ignore_eos=True)
    (drawn,) = (await run.sample((5, 6), params)).samples
    return (*drawn.tokens, *drawn.logprobs, *(await run.forward([datum()])).logprobs[0])


@pytest.mark.parametrize("worker_id", [ROLLOUT, TRAIN])
async def test_a_stopped_worker_is_replaced_and_its_work_done_again(
    session: Session, losses: Losses, worker_id: WorkerId
) -> None:
    runs = [await session.create_run(name) for name in ("quiet", "disturbed")]
    want = [await learnt(runs[0]) for _ in range(2)]
    assert await learnt(runs[1]) == want[0]
    stopped = session.head.pool.workers[worker_id].pid
    os.kill(stopped, signal.SIGSTOP)
    async with asyncio.timeout(SOON_S):
        assert await learnt(runs[1]) == want[1]
    assert session.head.pool.workers[worker_id].pid != stopped
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)
    assert losses.whys == [
        f"{worker_id}: worker {worker_id} ended "
        f"(killed, since it gave no sign of life for {SILENT_S:g} s): nothing logged"
    ]


async def test_a_step_that_computes_for_long_is_no_silence(
    session: Session, losses: Losses
) -> None:
    assert slow_trainer.LONG_S > 2 * SILENT_S
    run = await session.create_run("one")
    pid = session.head.pool.workers[TRAIN].pid
    await run.forward_backward([datum(slow_trainer.LONG)], "cross_entropy")
    assert session.head.pool.workers[TRAIN].pid == pid
    assert not losses.whys


@pytest.mark.parametrize("session", [STEP_LIMIT_S], indirect=True)
async def test_a_step_that_never_ends_is_cut_short_and_a_steady_one_is_not(
    session: Session, losses: Losses
) -> None:
    run, other = [await session.create_run(name) for name in ("one", "other")]
    assert slow_trainer.STEPS * slow_trainer.STEP_S > 2 * STEP_LIMIT_S
    await other.forward_backward([datum(slow_trainer.STEADY)], "cross_entropy")
    assert not losses.whys
    stuck = session.head.pool.workers[TRAIN].pid
    async with asyncio.timeout(SOON_S):
        with pytest.raises(WorkerLost, match="the worker died twice during the same Forward"):
            await run.forward_backward([datum(slow_trainer.ENDLESS)], "cross_entropy")
        await other.optim_step(ADAM)
    assert other.version == 1
    with pytest.raises(ProcessLookupError):
        os.kill(stuck, 0)
    assert (
        losses.whys
        == [
            f"{TRAIN}: worker {TRAIN} ended (killed, since one step of its work took longer than "
            f"--step-limit): in ForwardBackward of one for {STEP_LIMIT_S:g} s"
        ]
        * 2
    )
