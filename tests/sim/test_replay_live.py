"""Live launches of the built-in model: decisions made again, and the shared launch predicted."""

import asyncio
from pathlib import Path

import pytest

from plait.cli.run import drive
from plait.core.runs import Stage
from plait.jobs.load import load_jobs
from plait.models.registry import resolve
from plait.obs.launch import Launch, read_launch
from plait.policies.registry import make
from plait.runtime.settings import Settings
from plait.sim.decisions import check_launch
from plait.sim.recorded import recorded_jobs
from plait.sim.replay import predict

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

JOBS = """
model: tiny
defaults: {groups: 4, samples: 4, steps: 3}
jobs:
  - {name: sum, environment: {name: tiny-sum}, limits: {max_tokens: 8}}
  - {name: sort, environment: {name: tiny-sort, latency_s: 0.5}, limits: {max_tokens: 8}}
"""

FACTOR = 3.0
"""How far off a prediction may be here, where other tests run meanwhile: C8 measures it."""


def run(directory: Path, jobs: Path, policy: str) -> Launch:
    outcomes = asyncio.run(
        drive(load_jobs([jobs]), directory, policy=make(policy), settings=Settings(), quiet=True)
    )
    assert {outcome.stage for outcome in outcomes.values()} == {Stage.DONE}
    return read_launch(directory)


def test_a_live_launch_is_made_again_and_predicted(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(JOBS)
    alone = run(tmp_path / "alone", jobs, "sequential")
    shared = run(tmp_path / "shared", jobs, "plait")
    for launch in (alone, shared):
        checked = check_launch(launch.root)
        assert checked.same, checked.differences
        assert set(checked.n_decisions) >= {"admission", "dispatch", "residency"}
    model = str(resolve("tiny") / "config.json")
    for job, log in zip(recorded_jobs(shared, model=model), shared.jobs, strict=True):
        drawn = [sum(map(sum, step.responses)) for step in job.spec.recorded if not step.evaluates]
        assert drawn == [row["tokens_sampled"] for row in log.steps]
        for step in job.spec.recorded:
            for turns, replies, waits in zip(
                step.responses, step.results, step.waits_s, strict=True
            ):
                assert len(turns) == len(waits) == len(replies) + 1
    found = predict(shared, [alone], model=model)
    assert 1 / FACTOR < found.predicted_s / found.live_s < FACTOR
