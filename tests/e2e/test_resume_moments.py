"""Resume at the worst moments: every step and every evaluation stands in the files exactly once.

The moments are made by stopping a launch in the middle of a call; what a launch that is stopped
leaves is what one that is killed leaves, since nothing is written on the way out.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from launches import EvenSource, final_state, info, job, launch, rows, run_jobs, samples

import plait.jobs.controller as controller
import plait.jobs.life as life
from plait.cli.watch import snapshot
from plait.jobs.launch import Launch
from plait.jobs.spec import JobSpec
from plait.obs.recorder import JobRecorder
from plait.runtime.samples import Samples

pytestmark = pytest.mark.e2e

EVALUATED = {"every": 2, "items": 3}


@pytest.fixture(scope="module")
def spec(byte_model: Path) -> JobSpec:
    return job("one", byte_model, evaluation=EVALUATED)


@pytest.fixture(scope="module")
def calm(spec: JobSpec, byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A launch that nothing happened to."""
    directory = tmp_path_factory.mktemp("calm")
    asyncio.run(run_jobs(directory, byte_model, [spec]))
    return directory


class Moment:
    """A call that never returns, and word that it was made."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def hang(self, *args: Any, **kwargs: Any) -> None:
        self.reached.set()
        await asyncio.Event().wait()


async def stop_at(moment: Moment, directory: Path, model: Path, spec: JobSpec) -> None:
    """Run the job and leave the launch when the moment has come."""
    async with launch(directory, model) as running:
        running.add_job(spec, EvenSource())
        await asyncio.wait_for(moment.reached.wait(), 60)


async def go_on(directory: Path, model: Path, spec: JobSpec) -> None:
    await run_jobs(directory, model, [spec])


def assert_same(directory: Path, calm: Path) -> None:
    assert rows(directory, "one") == rows(calm, "one")
    assert samples(directory, "one") == samples(calm, "one")
    assert final_state(directory, "one") == final_state(calm, "one")


@pytest.mark.parametrize("step", [0, 2, 4])
async def test_before_a_due_evaluation(
    step: int,
    calm: Path,
    spec: JobSpec,
    byte_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment, evaluate = Moment(), controller.evaluate
    with monkeypatch.context() as patch:

        async def maybe(context: Any, at: int) -> None:
            await (moment.hang() if at == step else evaluate(context, at))

        patch.setattr(controller, "evaluate", maybe)
        await stop_at(moment, tmp_path, byte_model, spec)
    assert not any(r["step"] == step and "eval_n" in r for r in rows(tmp_path, "one"))
    await go_on(tmp_path, byte_model, spec)
    assert_same(tmp_path, calm)


async def test_in_the_middle_of_an_evaluations_samples(
    calm: Path, spec: JobSpec, byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment, sample = Moment(), JobRecorder.sample
    with monkeypatch.context() as patch:

        def write(self: JobRecorder, row: Any) -> None:
            if row.split == "eval" and row.step == 2 and row.index == 1:
                moment.reached.set()
                raise asyncio.CancelledError
            sample(self, row)

        patch.setattr(JobRecorder, "sample", write)
        await stop_at(moment, tmp_path, byte_model, spec)
    assert sum(s["step"] == 2 and s["split"] == "eval" for s in samples(tmp_path, "one")) == 1
    await go_on(tmp_path, byte_model, spec)
    assert_same(tmp_path, calm)


async def test_between_a_commit_and_its_line(
    calm: Path, spec: JobSpec, byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment, load = Moment(), Samples.load
    with monkeypatch.context() as patch:

        async def publish(self: Samples, run_id: Any, version: int, *rest: Any) -> None:
            await (moment.hang() if version == 2 else load(self, run_id, version, *rest))

        patch.setattr(Samples, "load", publish)
        await stop_at(moment, tmp_path, byte_model, spec)
    assert max(r["step"] for r in rows(tmp_path, "one")) == 1
    await go_on(tmp_path, byte_model, spec)
    assert_same(tmp_path, calm)


async def test_after_samples_and_before_the_commit(
    calm: Path, spec: JobSpec, byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment, learn = Moment(), controller.learn
    with monkeypatch.context() as patch:

        async def maybe(context: Any, collected: Any, step: int, **kwargs: Any) -> Any:
            if step == 3:
                await moment.hang()
            return await learn(context, collected, step, **kwargs)

        patch.setattr(controller, "learn", maybe)
        await stop_at(moment, tmp_path, byte_model, spec)
    assert any(s["step"] == 3 for s in samples(tmp_path, "one"))
    await go_on(tmp_path, byte_model, spec)
    assert_same(tmp_path, calm)


async def test_while_somebody_watches_the_files_being_brought_back(
    calm: Path, spec: JobSpec, byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment, learn, settle = Moment(), controller.learn, life.settle
    with monkeypatch.context() as patch:

        async def maybe(context: Any, collected: Any, step: int, **kwargs: Any) -> Any:
            if step == 3:
                await moment.hang()
            return await learn(context, collected, step, **kwargs)

        patch.setattr(controller, "learn", maybe)
        await stop_at(moment, tmp_path, byte_model, spec)

    def slowly(*args: Any) -> Any:
        time.sleep(0.3)
        return settle(*args)

    monkeypatch.setattr(life, "settle", slowly)
    async with launch(tmp_path, byte_model) as running:
        running.add_job(spec, EvenSource())
        ended = asyncio.create_task(running.wait_all())
        while not ended.done():
            snapshot(running)
            await asyncio.sleep(0.01)
    assert_same(tmp_path, calm)


async def test_a_job_that_had_ended_does_nothing_again(
    spec: JobSpec, byte_model: Path, tmp_path: Path
) -> None:
    await run_jobs(tmp_path, byte_model, [spec])
    before = rows(tmp_path, "one"), samples(tmp_path, "one"), final_state(tmp_path, "one")
    await go_on(tmp_path, byte_model, spec)
    assert (rows(tmp_path, "one"), samples(tmp_path, "one"), final_state(tmp_path, "one")) == before


async def test_all_jobs_are_written_down_before_a_worker_starts(
    byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = [job(name, byte_model) for name in ("z", "a")]

    async def no_workers(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("plait.runtime.head.Head.start", no_workers)
    with pytest.raises(KeyboardInterrupt):
        await Launch(tmp_path, model=str(byte_model), planned=planned).__aenter__()
    assert info(tmp_path)["jobs"] == ["z", "a"], "in the order in which they were given"
    assert all((tmp_path / "jobs" / name / "config.yaml").is_file() for name in ("z", "a"))
