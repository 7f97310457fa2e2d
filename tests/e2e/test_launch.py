"""Jobs that come, wait, go and are killed while others run, through ``plait.open``."""

import asyncio
import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from launches import (
    SCRIPTED,
    SOON_S,
    EvenSource,
    final_state,
    job,
    launch,
    rows,
    run_jobs,
    samples,
    until_step,
    worker_pids,
)

import plait
from plait.core.errors import CLOSED, ConfigError, PlaitError
from plait.core.ids import RunId
from plait.core.operations import AdamParams, Datum, SamplingParams
from plait.core.runs import Stage
from plait.jobs.launch import Outcome
from plait.obs.jsonl import read_jsonl

pytestmark = pytest.mark.e2e


async def test_a_paused_job_waits_and_goes_on_while_others_run(
    byte_model: Path, tmp_path: Path
) -> None:
    async with launch(tmp_path, byte_model) as running:
        running.add_job(job("held", byte_model, steps=20), EvenSource())
        running.pause("held")  # before its run exists
        running.add_job(job("free", byte_model, steps=6), EvenSource())
        assert (await running.wait("free")).stage is Stage.DONE
        held = running.session.run("held").facts
        assert held.step == 0
        running.resume("held")
        await until_step(running, "held", 2)
        running.pause("held")
        await asyncio.sleep(0.1)
        step = held.step
        running.add_job(job("late", byte_model, steps=4), EvenSource())
        assert (await running.wait("late")).stage is Stage.DONE
        assert held.step <= step + 1, "only what was under way"
        running.resume("held")
        assert (await running.wait("held")).reason == "finished 20 steps"


async def test_a_cancelled_job_ends_at_once_and_the_others_do_not_notice(
    byte_model: Path, tmp_path: Path
) -> None:
    kept = job("kept", byte_model, steps=10)
    await run_jobs(tmp_path / "alone", byte_model, [kept])
    gate = asyncio.Event()
    async with launch(tmp_path / "shared", byte_model) as running:
        running.add_job(kept, EvenSource())
        running.add_job(job("early", byte_model), EvenSource())
        assert await running.cancel("early", "never mind") == Outcome(
            stage=Stage.CANCELLED, reason="never mind"
        )
        running.add_job(job("hung", byte_model), EvenSource(gate=gate))
        running.add_job(job("busy", byte_model, steps=500), EvenSource())
        await until_step(running, "busy", 3)
        for name in ("hung", "busy"):
            async with asyncio.timeout(SOON_S):
                outcome = await running.cancel(name, "not wanted")
            assert outcome == Outcome(stage=Stage.CANCELLED, reason="not wanted")
        assert (await running.wait("kept")).stage is Stage.DONE
        with pytest.raises(ConfigError, match="there is no job nobody: known are kept"):
            running.pause("nobody")
    for read in (rows, samples, final_state):
        assert read(tmp_path / "shared", "kept") == read(tmp_path / "alone", "kept")
    # What was cancelled is over for good; what it had committed is there.
    assert len(list((tmp_path / "shared" / "jobs" / "busy" / "versions").iterdir())) >= 1
    async with launch(tmp_path / "shared", byte_model) as again:
        statuses = {row.name: row.status.value for row in again.session.store.runs.list()}
    assert statuses == {
        "kept": "done",
        "early": "cancelled",
        "hung": "cancelled",
        "busy": "cancelled",
    }


async def test_twenty_jobs_join_and_leave_the_same_workers(
    byte_model: Path, tmp_path: Path
) -> None:
    async with launch(tmp_path, byte_model) as running:
        running.add_job(job("stays", byte_model, steps=2000), EvenSource())
        pids = {w.pid for w in running.session.head.pool.workers.values()}
        n_files = len(os.listdir("/proc/self/fd"))
        for i in range(20):
            name = f"guest-{i}"
            running.add_job(job(name, byte_model, steps=2), EvenSource())
            if i % 3 == 2:
                await until_step(running, name, 1)
                assert (await running.cancel(name)).stage is not Stage.FAILED
            else:
                assert (await running.wait(name)).stage is Stage.DONE
        assert {w.pid for w in running.session.head.pool.workers.values()} == pids
        assert len(os.listdir("/proc/self/fd")) <= n_files + 6, "files of jobs that left stay open"
        assert not running.session.run("stays").facts.stage.ended
    assert set(worker_pids(tmp_path)) == pids


async def test_killed_workers_change_nothing(byte_model: Path, tmp_path: Path) -> None:
    specs = [job(name, byte_model, steps=12, evaluation={"items": 2}) for name in ("a", "b")]
    await run_jobs(tmp_path / "calm", byte_model, specs)
    async with launch(tmp_path / "stormy", byte_model) as running:
        for spec in specs:
            running.add_job(spec, EvenSource())
        for step, worker in ((2, "rollout-0"), (5, "train-0"), (8, "rollout-0")):
            await until_step(running, "a", step)
            os.kill(running.session.head.pool.workers[worker].pid, signal.SIGKILL)
        outcomes = await running.wait_all()
    assert {o.reason for o in outcomes.values()} == {"finished 12 steps"}
    assert len(worker_pids(tmp_path / "stormy")) >= 4, "they were replaced"
    for name in ("a", "b"):
        for read in (rows, samples, final_state):
            assert read(tmp_path / "stormy", name) == read(tmp_path / "calm", name)


async def test_several_workers_of_each_kind_killed_in_turn_change_nothing(
    byte_model: Path, tmp_path: Path
) -> None:
    """Down to the bits: the scripted engine's sums do not depend on who computes them."""
    names = ("a", "b", "c")
    specs = [job(name, byte_model, steps=12, evaluation={"items": 2}) for name in names]
    await run_jobs(tmp_path / "calm", byte_model, specs)
    several = replace(SCRIPTED, rollout_workers=2, training_workers=2)
    async with launch(tmp_path / "stormy", byte_model, settings=several) as running:
        for spec in specs:
            running.add_job(spec, EvenSource())
        victims = ("rollout-1", "train-1", "rollout-0", "train-0")
        for step, worker in zip((2, 4, 6, 8), victims, strict=True):
            await until_step(running, "a", step)
            os.kill(running.session.head.pool.workers[worker].pid, signal.SIGKILL)
        outcomes = await running.wait_all()
    assert {o.reason for o in outcomes.values()} == {"finished 12 steps"}
    assert len(worker_pids(tmp_path / "stormy")) == 8, "each was replaced"
    for name in names:
        for read in (rows, samples, final_state):
            assert read(tmp_path / "stormy", name) == read(tmp_path / "calm", name)
    homes = [
        row["plan"]["worker_id"]
        for row in read_jsonl(tmp_path / "stormy" / "decisions.jsonl")
        if row["kind"] == "home"
    ]
    assert sorted(homes[:2]) == ["train-0", "train-1"]


@pytest.mark.parametrize("lag", [1, 2])
async def test_no_trajectory_lags_more_than_asked(
    lag: int, byte_model: Path, tmp_path: Path
) -> None:
    async with launch(tmp_path, byte_model) as running:
        spec = job(
            "stale", byte_model, steps=12, staleness=lag, evaluation={"every": 4, "items": 2}
        )
        running.add_job(spec, EvenSource(turns=2))
        running.add_job(job("beside", byte_model, steps=12), EvenSource())
        assert {o.stage for o in (await running.wait_all()).values()} == {Stage.DONE}
    found = rows(tmp_path, "stale")
    steps = [row for row in found if "reward_mean" in row]
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert [row["step"] for row in found if "eval_n" in row] == [0, 4, 8, 12]
    # Step n makes version n from samples of version n - 1 at best.
    lags = [
        s["step"] - 1 - s["version"] for s in samples(tmp_path, "stale") if s["split"] == "train"
    ]
    assert 0 <= min(lags) <= max(lags) <= lag
    assert max(lags) > 0, "it never ran ahead"
    assert max(row["staleness"] for row in steps) == max(lags)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2])
async def test_a_stale_job_learns(lag: int, tmp_path: Path) -> None:
    async with plait.open(tmp_path, kv_blocks=1024) as running:
        spec = job(
            "sums",
            "tiny",
            groups=6,
            samples=6,
            steps=12,
            staleness=lag,
            limits={"max_tokens": 8},
            optimizer={"learning_rate": 4e-3},
        )
        running.add_job(spec)
        assert (await running.wait("sums")).stage is Stage.DONE
    rewards = [row["reward_mean"] for row in rows(tmp_path, "sums")]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.15
    assert max(row["staleness"] for row in rows(tmp_path, "sums")) <= lag


async def test_whatever_is_asked_of_a_launch_that_is_left_ends_with_one_error(
    byte_model: Path, tmp_path: Path
) -> None:
    ones = {"advantages": [1.0, 1.0], "logprobs": [0.0, 0.0]}
    data = [Datum(input_tokens=(1, 2), target_tokens=(2, 3), mask=[True, True], inputs=ones)]
    params, adam = SamplingParams(max_tokens=6), AdamParams(learning_rate=1e-2)

    def everything() -> list[asyncio.Task[object]]:
        calls = [
            run.sample((1, 2), params),
            run.forward_backward(data, "ppo"),
            run.optim_step(adam),
            run.publish(),
            run.forward(data),
            run.load(run.facts.path),
            running.wait("cut-short"),
            running.wait_all(),
        ]
        return [asyncio.ensure_future(call) for call in calls]

    async with contextlib.AsyncExitStack() as left_late:
        async with launch(tmp_path, byte_model) as running:
            run, rolling = await running.create_run("one"), await running.create_run("two")
            await left_late.enter_async_context(rolling.rollout(4))
            running.add_job(job("cut-short", byte_model, steps=10_000), EvenSource())
            await until_step(running, "cut-short", 1)
            running.session.head.set_paused(RunId("one"), True)
            under_way = everything()
            await asyncio.sleep(0.1)
            assert not any(call.done() for call in under_way)
        later = everything()
        for call in (running.create_run("three"), run.progress(), run.save(tmp_path / "kept")):
            later.append(asyncio.ensure_future(call))
        async with asyncio.timeout(SOON_S):
            ended = await asyncio.gather(*under_way, *later, return_exceptions=True)
        assert [str(e) for e in ended] == [CLOSED] * len(ended)
        assert all(isinstance(e, PlaitError) for e in ended)
        with pytest.raises(PlaitError, match=CLOSED):
            running.add_job(job("late", byte_model), EvenSource())
    async with launch(tmp_path, byte_model) as running:
        assert (await running.create_run("one")).version == 0


async def test_a_launch_that_is_not_open_says_how_to_open_it(
    byte_model: Path, tmp_path: Path
) -> None:
    closed = launch(tmp_path / "l", byte_model)
    with pytest.raises(PlaitError, match="use it as `async with"):
        await closed.create_run("one")
    with pytest.raises(PlaitError, match="use it as `async with"):
        closed.add_job(job("one", byte_model), EvenSource())
    assert not (tmp_path / "l").exists()


async def test_giving_up_the_wait_for_a_job_does_nothing_to_it(
    byte_model: Path, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    async with launch(tmp_path, byte_model) as running:
        running.add_job(job("one", byte_model), EvenSource(gate=gate))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running.wait("one"), 0.05)
        gate.set()
        assert (await running.wait("one")).stage is Stage.DONE


async def test_jobs_of_every_loss_learn_side_by_side(byte_model: Path, tmp_path: Path) -> None:
    algorithms = {
        "ppo": {"loss": "ppo"},
        "importance_sampling": {"loss": "importance_sampling"},
        "cispo": {"loss": "cispo", "kl_coef": 0.01},
        "dro": {"loss": "dro", "beta": 0.05},
        "gspo": {"loss": "gspo", "clip_low": 0.95, "clip_high": 1.05},
    }
    async with launch(tmp_path, byte_model) as running:
        for name, algorithm in algorithms.items():
            size = {"steps": 24, "groups": 4, "samples": 8, "optimizer": {"learning_rate": 0.2}}
            running.add_job(job(name, byte_model, algorithm=algorithm, **size), EvenSource())
        assert {o.stage for o in (await running.wait_all()).values()} == {Stage.DONE}
    for name in algorithms:
        rewards = [row["reward_mean"] for row in rows(tmp_path, name) if "reward_mean" in row]
        assert sum(rewards[-4:]) > sum(rewards[:4]) + 1.2, name


async def test_held_out_evaluation_at_the_start_can_be_left_out(
    byte_model: Path, tmp_path: Path
) -> None:
    section = {"every": 2, "items": 2}
    specs = [
        job("both", byte_model, evaluation=section),
        job("end", byte_model, evaluation={**section, "at_start": False}),
    ]
    await run_jobs(tmp_path, byte_model, specs)
    steps = {
        name: [r["step"] for r in rows(tmp_path, name) if "eval_n" in r] for name in ("both", "end")
    }
    assert steps == {"both": [0, 2, 4], "end": [2, 4]}
