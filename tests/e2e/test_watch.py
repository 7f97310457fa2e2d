"""What the view is told of a job that is taken up again."""

import asyncio
from pathlib import Path

import pytest
from launches import SOON_S, EvenSource, job, launch, rows, run_jobs

from plait.cli.watch import snapshot
from plait.core.runs import Stage
from plait.obs.live import job_line
from plait.obs.snapshot import JobLine

pytestmark = pytest.mark.e2e


async def test_a_job_that_goes_on_says_where_and_with_what(
    byte_model: Path, tmp_path: Path
) -> None:
    half = job("a", byte_model, steps=2, evaluation={"items": 2})
    await run_jobs(tmp_path, byte_model, [half])
    found = rows(tmp_path, "a")
    reward = [row["reward_mean"] for row in found if "reward_mean" in row][-1]
    held_out = [row["eval_reward_mean"] for row in found if "eval_n" in row][-1]
    with (tmp_path / "jobs" / "a" / "metrics.jsonl").open("a") as log:
        log.write('{"t": 9.0, "step": 3, "reward_mean": 7.0}\n')  # never committed
    gate = asyncio.Event()
    async with launch(tmp_path, byte_model) as running:
        running.add_job(job("a", byte_model, steps=4), EvenSource(gate=gate))

        def line() -> JobLine:
            (only,) = snapshot(running).jobs
            return only

        first = line()
        assert (first.stage, first.step) == ("resuming", 2)
        assert (first.reward, first.eval_reward) == (reward, held_out)
        assert job_line(first, 0.0).startswith("[00:00] a: resuming at step 2/4, reward ")
        assert running.recorder.found("a") is None, "its files were opened before they were cut"
        async with asyncio.timeout(SOON_S):
            while line().stage != "rollout":  # noqa: ASYNC110 - a stage is no event of anybody's
                await asyncio.sleep(0.005)
        assert (line().step, line().reward, line().eval_reward) == (2, reward, held_out)
        gate.set()
        assert (await running.wait("a")).stage is Stage.DONE
        assert line().reward not in (None, 7.0)
    steps = [row["step"] for row in rows(tmp_path, "a") if "reward_mean" in row]
    assert steps == [1, 2, 3, 4]
