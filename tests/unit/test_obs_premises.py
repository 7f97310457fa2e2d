"""Premises of launches: curves and gaps read off spans."""

import asyncio
from pathlib import Path

import launches
import pytest
from obs_launch import info, two_job_launch

from plait.core.errors import ConfigError
from plait.core.ids import RunId, WorkerId
from plait.models.registry import TINY_DIR
from plait.obs.launch import read_launch
from plait.obs.premises import decode_curves, premises
from plait.obs.recorder import Recorder
from plait.obs.records import Span
from plait.runtime.settings import Settings


def one_job(root: Path, name: str, *, tails=(20, 20, 20, 20), train_s: float = 2.0) -> Path:
    """Steps of 2 s of rollout (10 forward steps of 8 rows, then a tail of one) and training."""
    recorder = Recorder(root, origin_s=0.0)
    recorder.launch(info())
    job = recorder.added(name, RunId(name), now=0.0)
    now = 0.0
    for tail in tails:
        job.event("stage", now=now, stage="rollout")
        for t0, steps, rows in ((now, 10, 8), (now + 1.0, tail, 1)):
            recorder.span(
                Span(
                    worker=WorkerId("rollout"),
                    kind="rollout",
                    t0=t0,
                    t1=t0 + 1.0,
                    run=job.run_id,
                    tokens=steps * rows,
                    steps=steps,
                    n_running=rows,
                )
            )
        job.event("stage", now=now + 2.0, stage="idle")
        recorder.span(
            Span(
                worker=WorkerId("train"),
                kind="train",
                t0=now + 2.0,
                t1=now + 2.0 + train_s,
                run=job.run_id,
                tokens=100,
            )
        )
        now += 4.0
    job.event("finished", now=now)
    recorder.close()
    return root


def test_curves_by_hand(tmp_path):
    launch = read_launch(one_job(tmp_path / "a", "a", tails=(20, 30)))
    assert decode_curves(launch) == [[(10, 8), (20, 1)], [(10, 8), (30, 1)]]


def test_two_jobs_alone(tmp_path):
    a = one_job(tmp_path / "a", "a", train_s=0.0)
    b = one_job(tmp_path / "b", "b", tails=(20, 20, 20, 40), train_s=0.0)
    found = premises([a, b])
    (first, second) = found.jobs
    assert (first.n_steps, first.consistency.area) == (4, pytest.approx(0.0))
    assert second.consistency.worst_area > 0.1
    ((one, other, gaps),) = found.pairs
    assert (one, other) == ("a", "b")
    # Busy for 8 of the 14 s until the last work ends: turned by two seconds they nearly fit.
    assert gaps.busy == pytest.approx((8 / 14, 8 / 14))
    assert gaps.bound == pytest.approx(1 / 7)
    assert gaps.best == pytest.approx(gaps.bound, abs=0.01)
    assert gaps.avoided > 0.95


def test_a_launch_of_two_jobs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="one job each"):
        premises([two_job_launch(tmp_path)])


def test_a_launch_that_did_nothing(tmp_path):
    idle = one_job(tmp_path / "idle", "idle", tails=())
    busy = one_job(tmp_path / "busy", "busy")
    assert premises([idle]).jobs[0].consistency is None
    with pytest.raises(ConfigError, match="no recorded work"):
        premises([idle, busy])


@pytest.mark.slow
def test_a_real_launch(tmp_path):
    """Of the tiny model: rollouts of one length have one curve."""
    spec = launches.job(
        "alone", TINY_DIR, steps=5, sampling={"ignore_eos": True}, limits={"max_tokens": 24}
    )

    async def run() -> None:
        settings = Settings(cores=1, kv_blocks=256, device="cpu")
        async with launches.launch(tmp_path, TINY_DIR, settings=settings) as running:
            running.add_job(spec, launches.EvenSource())
            await running.wait_all()

    asyncio.run(run())
    (job,) = premises([tmp_path]).jobs
    assert job.n_steps >= 5
    assert 0 < job.busy <= 1
    assert job.consistency.n_pairs >= 3
    assert job.consistency.area < 0.3
