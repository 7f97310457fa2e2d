"""Reading a launch back."""

from pathlib import Path

import pytest
from obs_launch import two_job_launch

from plait.core.errors import ConfigError
from plait.obs.launch import read_launch, shares


def test_runs_are_called_by_their_jobs_name(tmp_path: Path) -> None:
    launch = read_launch(two_job_launch(tmp_path / "l"))
    assert [job.name for job in launch.jobs] == ["a", "b"]
    assert launch.name("run-a") == "a"
    assert launch.workers == ["rollout", "train"]
    assert launch.wall_s == 14.0
    assert {e["run"] for e in launch.job_events("b")} == {"run-b"}


def test_steps_and_evaluations_are_told_apart(tmp_path: Path) -> None:
    job = read_launch(two_job_launch(tmp_path / "l")).jobs[0]
    assert [row["step"] for row in job.steps] == [1, 2, 3]
    assert [row["step"] for row in job.evaluations] == [0, 3]


def test_of_a_step_recorded_twice_the_last_counts(tmp_path: Path) -> None:
    root = two_job_launch(tmp_path / "l")
    with (root / "jobs" / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"t":20.0,"step":3,"reward_mean":0.9}\n{"t":21.0,"step":4,"rewa')
    job = read_launch(root).jobs[0]
    assert [row["reward_mean"] for row in job.steps] == [0.1, 0.2, 0.9]


def test_shares_follow_the_tokens() -> None:
    assert shares({"tokens_by_run": {"a": 3, "b": 1, "c": 0}}) == {"a": 0.75, "b": 0.25}
    assert shares({"tokens_by_run": {"a": 0, "b": 0}}) == {"a": 0.5, "b": 0.5}
    assert shares({"run": "a", "tokens_by_run": {}}) == {"a": 1.0}
    assert shares({"run": None}) == {}


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no launch directory"):
        read_launch(tmp_path)
