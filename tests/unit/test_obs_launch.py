"""Reading a launch back."""

from pathlib import Path

import pytest
from obs_launch import two_job_launch

from plait.core.errors import ConfigError, PlaitError
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


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        (
            "workers.jsonl",
            '{"worker":"w","kind":"train","t1":2.0}',
            "has no seconds from 0 on `t0`",
        ),
        (
            "workers.jsonl",
            '{"worker":"w","kind":"train","t0":"x","t1":2.0}',
            "no seconds from 0 on `t0`",
        ),
        ("workers.jsonl", '{"kind":"train","t0":1.0,"t1":2.0}', "has no word `worker`"),
        (
            "workers.jsonl",
            '{"worker":"w","kind":"train","t0":1.0,"t1":2.0,"tokens_by_run":{"a":"x"}}',
            "has no mapping of runs to numbers `tokens_by_run`",
        ),
        ("workers.jsonl", '{"worker":"w","kind":"x","t0":1,"t1":2,"flops":[]}', "number `flops`"),
        ("workers.jsonl", '{"worker":"w","kind":"x","t0":3,"t1":2}', "ends before it begins"),
        ("workers.jsonl", '{"worker":"w","kind":"x","t0":1,"t1":2e9}', "no seconds from 0 on"),
        ("workers.jsonl", '{"worker":"w","kind":"x","t0":1,"t1":2,"tokens":-1}', "0 on `tokens`"),
        ("workers.jsonl", '{"worker":"w","kind":"x","t0":1,"t1":2,"tokens":1e300}', "on `tokens`"),
        ("events.jsonl", '{"t":-1,"kind":"x"}', "no seconds from 0 on `t`"),
        ("events.jsonl", '{"t":1,"kind":"waits","step":1}', "has no word `split`"),
        (
            "events.jsonl",
            '{"t":1,"kind":"waits","split":"train","step":1,"index":0,"group":0,"waits_s":[-1]}',
            "no list of seconds from 0 on `waits_s`",
        ),
        ("jobs/a/metrics.jsonl", '{"t":1,"step":9,"publish_s":-1}', "from 0 on `publish_s`"),
        ("jobs/a/metrics.jsonl", '{"t":1,"step":9,"tokens_trained":NaN}', "`tokens_trained`"),
        ("workers.jsonl", '{"t0":' + "[" * 5000 + "]" * 5000 + "}", "is not JSON"),
        ("events.jsonl", '{"kind":"stage"}', "has no seconds from 0 on `t`"),
        ("events.jsonl", '{"t":1.0}', "has no word `kind`"),
        ("events.jsonl", '{"t":1.0,"kind":"x","run":3}', "has no word `run`"),
        ("events.jsonl", '{"t":1.0,"kind":"added","run":"r"}', "has no word `job`"),
        (
            "events.jsonl",
            '{"t":1.0,"kind":"outside","what":"tool","key":"k"}',
            "no seconds from 0 on `t0`",
        ),
        ("jobs/a/metrics.jsonl", '{"t":1.0}', "has no number from 0 on `step`"),
        ("jobs/a/metrics.jsonl", '{"step":9}', "has no seconds from 0 on `t`"),
        (
            "jobs/a/metrics.jsonl",
            '{"t":1,"step":9,"eval_n":null}',
            "has no number from 0 on `eval_n`",
        ),
        ("jobs/a/metrics.jsonl", '{"t":1,"step":9,"reward_mean":"x"}', "number `reward_mean`"),
        (
            "jobs/a/metrics.jsonl",
            '{"t":1,"step":1' + "0" * 400 + "}",
            "has no number from 0 on `step`",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    file: str, line: str, message: str, tmp_path: Path
) -> None:
    root = two_job_launch(tmp_path / "l")
    number = len((root / file).read_text().splitlines()) + 1
    with (root / file).open("a") as out:
        out.write(line + "\n")
    with pytest.raises(PlaitError, match=message) as found:
        read_launch(root)
    assert f"{file}:{number} " in str(found.value)
    assert str(found.value).endswith("remove the line")


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no launch directory"):
        read_launch(tmp_path)
