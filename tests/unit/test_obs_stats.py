"""Every figure of a launch whose figures are known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from obs_launch import info, two_job_launch

from plait.core.ids import RunId
from plait.obs.launch import JobLog, read_launch
from plait.obs.recorder import Recorder
from plait.obs.records import StepMetrics
from plait.obs.stats import LaunchStats, _rewards, covered_s, launch_stats, tpts_by_job

STEP = StepMetrics(
    step=1,
    version=1,
    reward_mean=0.5,
    reward_n=8,
    reward_errors=0,
    groups=2,
    groups_skipped=0,
    tokens_sampled=10,
    loss=None,
    grad_norm=None,
    lr=1e-3,
)


@pytest.fixture(scope="module")
def stats(tmp_path_factory: pytest.TempPathFactory) -> LaunchStats:
    launch = read_launch(two_job_launch(tmp_path_factory.mktemp("s") / "l"))
    return launch_stats(launch, alone_tpts_s={"a": 3.2, "b": 2.5})


def test_times_of_a_job(stats: LaunchStats) -> None:
    a, b = stats.jobs
    assert (a.ttfs_s, b.ttfs_s) == (4.0, 4.0)  # joined at 1 and 2, first step at 5 and 6
    assert a.tpts_s == b.tpts_s == 4.0
    assert a.steps_per_hour == pytest.approx(3600 * 3 / 12)
    assert (a.steps, a.tokens, b.tokens) == (3, 900, 300)


def test_stretch_and_aggregate_speedup(stats: LaunchStats) -> None:
    a, b = stats.jobs
    assert (a.stretch, b.stretch) == (1.25, 1.6)
    assert stats.worst_stretch == 1.6
    assert stats.aggregate_speedup == pytest.approx(1 / 1.25 + 1 / 1.6)


def test_no_aggregate_without_every_stretch(tmp_path: Path) -> None:
    launch = read_launch(two_job_launch(tmp_path / "l"))
    partly = launch_stats(launch, alone_tpts_s={"a": 3.2})
    assert partly.aggregate_speedup is None
    assert partly.worst_stretch == 1.25
    assert launch_stats(launch).worst_stretch is None
    assert tpts_by_job(launch) == {"a": 4.0, "b": 4.0}


def test_a_step_without_a_signal_is_no_update(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "l", origin_s=0.0)
    recorder.launch(info())
    job = recorder.added("a", RunId("r"), now=0.0)
    for step, version in enumerate((0, 1, 1, 2), start=1):
        job.metrics(replace(STEP, step=step, version=version), now=float(step))
    recorder.close()
    found = launch_stats(read_launch(tmp_path / "l")).jobs[0]
    assert (found.steps, found.updates, found.groups) == (4, 2, 8)


def test_a_single_step_counts_from_joining(tmp_path: Path) -> None:
    launch = read_launch(two_job_launch(tmp_path / "l", n_steps=1))
    assert tpts_by_job(launch) == {"a": 4.0, "b": 4.0}


def test_status_and_reason(stats: LaunchStats) -> None:
    a, b = stats.jobs
    assert (a.status, a.reason) == ("finished", "")
    assert (b.status, b.reason) == (
        "failed",
        "the loss is not finite: lower the learning rate",
    )


def test_a_job_that_was_taken_up_again_is_unfinished_and_joined_once(tmp_path: Path) -> None:
    root = two_job_launch(tmp_path / "l")
    recorder = Recorder(root, origin_s=0.0)
    recorder.added("b", RunId("run-b"), now=1.0)
    recorder.close()
    b = launch_stats(read_launch(root)).jobs[1]
    assert (b.status, b.reason, b.ttfs_s) == ("unfinished", "", 4.0)


def test_stage_shares_and_waits(stats: LaunchStats) -> None:
    a, b = stats.jobs
    assert a.stage_shares == {
        "rollout": 0.5,
        "reward": 0.0,
        "reference": 0.0,
        "train": 0.25,
        "publish": 0.0,
        "wait": 0.25,
    }
    assert a.wait_s == {}
    assert b.wait_s == {"trainer_busy": 3.0}


def test_rewards_are_held_out_where_they_were_evaluated(stats: LaunchStats) -> None:
    a, b = stats.jobs
    assert a.reward_is_held_out
    assert a.reward_first is not None
    assert a.reward_last is not None
    assert (a.reward_first.mean, a.reward_last.mean, a.reward_last.n) == (0.25, 0.75, 40)
    assert not b.reward_is_held_out
    assert b.reward_last is not None
    assert b.reward_last.mean == pytest.approx(0.3)
    assert (a.reward_errors, a.groups_skipped) == (3, 3)


def test_device_seconds_follow_tokens_and_cores(stats: LaunchStats) -> None:
    a, b = stats.jobs
    # per step: 2 s of both cores, three quarters a's; 1 s of one core of two
    assert a.device_s_per_step == pytest.approx(2 * 0.75 + 0.5)
    assert b.device_s_per_step == pytest.approx(2 * 0.25 + 0.5)


def test_workers(stats: LaunchStats) -> None:
    rollout, train = stats.workers
    assert rollout.busy_share == pytest.approx(6 / 14)
    assert rollout.busy_s == {"rollout": 6.0}
    assert rollout.tokens == 1200
    assert rollout.mfu == pytest.approx(0.5 * 6 / 14)
    assert train.mfu is None
    assert stats.mfu == pytest.approx(0.5 * 6 / 14)


def test_overlapping_spans_are_counted_once() -> None:
    assert covered_s([(0, 2), (1, 3), (5, 6), (5.2, 5.5)]) == 4.0
    assert covered_s([]) == 0.0


@pytest.mark.parametrize(
    ("steps", "first", "last"), [([0, 4, 8], 0.0, 0.8), ([4, 8], None, 0.8), ([8], None, 0.8)]
)
def test_the_first_held_out_reward_is_that_before_the_first_step_or_none(
    steps: list[int], first: float | None, last: float
) -> None:
    rows = [{"step": n, "eval_reward_mean": n / 10, "eval_n": 32} for n in steps]
    log = cast(JobLog, SimpleNamespace(evaluations=rows, steps=[{"reward_mean": 0.1}]))
    held_out, found, end = _rewards(log)
    assert held_out
    assert (None if found is None else found.mean) == first
    assert end is not None
    assert end.mean == last
