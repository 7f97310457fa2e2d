"""Kill and resume, with the program that a user runs: nothing is lost and nothing is done twice."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
import yaml
from launches import final_state, rows, samples
from programs import assert_nobody_left, kill_everything, program, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOB = {
    "groups": 4,
    "samples": 4,
    "steps": 9,
    "limits": {"max_tokens": 8},
    "optimizer": {"learning_rate": 4e-3},
    "evaluation": {"every": 2, "items": 6},
    "checkpoint": {"every": 3},
}


def write_job(path: Path, **over: object) -> Path:
    path.write_text(yaml.safe_dump({**JOB, "name": "one", **over}))
    return path


def n_steps(directory: Path, name: str = "one") -> int:
    if not (directory / "jobs" / name / "metrics.jsonl").exists():
        return 0
    return sum("reward_mean" in row for row in rows(directory, name))


@pytest.mark.parametrize(
    ("environment", "staleness", "flags"),
    [
        ("tiny-sum", 0, ()),
        ("tiny-sort", 0, ("--deterministic",)),
        ("tiny-sum", 2, ("--deterministic",)),
    ],
)
def test_a_job_that_is_killed_again_and_again_ends_bit_for_bit_as_if_it_had_not(
    environment: str, staleness: int, flags: tuple[str, ...], tmp_path: Path
) -> None:
    # So many steps that it is under way whenever it is killed, on a fast machine too.
    over = {"environment": {"name": environment}, "staleness": staleness, "steps": 24}
    file = write_job(tmp_path / "job.yaml", **over)
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    code, _, err = run("run", file, "--dir", calm, *flags)
    assert code == 0, err
    moments = random.Random()
    seed = moments.getrandbits(32)
    print("moments:", seed)
    moments.seed(seed)
    begin: tuple[object, ...] = ("run", file, "--dir", stormy, *flags)
    for reached, how in ((1, "head"), (3, "everything"), (5, "interrupt")):
        with program(*begin) as running:  # type: ignore[arg-type]
            wanted = max(reached, n_steps(stormy) + 1)  # something of its own, not what it found
            running.until(lambda wanted=wanted: n_steps(stormy) >= wanted)  # type: ignore[misc]
            time.sleep(moments.uniform(0, 0.5))
            if how == "head":
                running.signal(signal.SIGKILL)
            elif how == "everything":
                kill_everything(running, stormy)
            else:
                running.signal(signal.SIGINT)
            code, _, err = running.wait()
        if how == "interrupt" and code != 0:  # 0: it was done before the signal came
            assert code == 130
            assert err.splitlines()[-1] == f"interrupted: go on with  plait run --resume {stormy}"
        assert_nobody_left(stormy)
        if how == "head":  # it died in the middle of a line
            for name in ("metrics.jsonl", "samples.jsonl"):
                with (stormy / "jobs" / "one" / name).open("a") as log:
                    log.write('{"step": 2, "rewa')
        begin = ("run", "--resume", stormy)
    code, out, err = run("run", "--resume", stormy)
    assert code == 0, err
    assert "one: done: finished 24 steps" in out
    assert_nobody_left(stormy)
    assert rows(stormy, "one") == rows(calm, "one")
    assert samples(stormy, "one") == samples(calm, "one")
    assert final_state(stormy, "one") == final_state(calm, "one")


def test_only_what_has_not_ended_goes_on(tmp_path: Path) -> None:
    file, directory = tmp_path / "two.yaml", tmp_path / "launch"
    short = {**JOB, "name": "short", "environment": {"name": "tiny-sum"}, "steps": 1}
    long = {**JOB, "name": "long", "environment": {"name": "tiny-sum"}, "steps": 6}
    file.write_text(yaml.safe_dump({"jobs": [short, long]}))
    with program("run", file, "--dir", directory) as running:
        adapter = directory / "jobs" / "short" / "adapter" / "adapter_model.safetensors"
        running.until(lambda: adapter.exists() and n_steps(directory, "long") >= 1)
        time.sleep(0.1)  # the end of the short job is committed
        running.signal(signal.SIGKILL)
        running.wait()
    before = (rows(directory, "short"), adapter.stat().st_mtime_ns)
    assert_nobody_left(directory)
    code, out, err = run("run", "--resume", directory, "--format", "json")
    assert code == 0, err
    found = json.loads(out)
    assert list(found["jobs"]) == ["long"], "the short job had ended"
    assert found["jobs"]["long"]["stage"] == "done"
    assert found["interrupted"] == []
    assert (rows(directory, "short"), adapter.stat().st_mtime_ns) == before
    assert [row["step"] for row in rows(directory, "long") if "reward_mean" in row] == [
        *range(1, 7)
    ]
    code, _, err = run("run", "--resume", directory)
    assert code == 2
    assert "every job" in err
