"""plait sim: what it prints, writes and refuses."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from plait.cli import main, sim

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("30*_sim_*.yaml"))
SMALL = """
cluster: {groups: [{name: node, device: h100, n_devices: 2}]}
jobs:
  - {name: a, model: qwen3-0.6b, steps: 2, groups: 2, response: {kind: fixed, median: 20}}
  - {name: b, model: qwen3-0.6b, steps: 2, groups: 2, response: {kind: fixed, median: 20}}
"""


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main.app(["sim", *args], standalone_mode=False)
    return int(ended.value.code or 0)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return file


def test_a_sweep_over_policies_is_a_table(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(small), "--policy", "plait, sequential", "--sweep", "jobs=1,2") == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in out[1:]] == [
        ["jobs=1", "plait"], ["jobs=1", "sequential"],
        ["jobs=2", "plait"], ["jobs=2", "sequential"],
    ]  # fmt: skip


def test_json_and_pictures(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(str(small), "--out", str(out), "--format", "json", "--price", "2") == 0
    found: Any = json.loads(capsys.readouterr().out)
    (one,) = found["cases"]
    assert one["scheme"] == "plait"
    assert one["speedup"] > 1.2
    assert one["cost"] == pytest.approx(2 * one["makespan_s"] * 2 / 3600)
    assert json.loads((out / "report.json").read_text()) == found["cases"]
    assert (out / "plait.png").is_file()


def test_a_seed_gives_other_draws_and_the_same_ones_again(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.write_text(
        SMALL.replace("kind: fixed, median: 20", "kind: lognormal, median: 99, sigma: 1")
    )
    seen = []
    for seed in ("1", "1", "2"):
        run(str(small), "--seed", seed, "--format", "json")
        seen.append(json.loads(capsys.readouterr().out)["cases"][0]["makespan_s"])
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_examples_run_as_they_stand(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 2
    (command,) = [line for line in file.read_text().splitlines() if "plait sim" in line]
    args = command.split("plait sim ")[1].split()
    args[0] = str(file)
    assert run(*args) == 0
    assert capsys.readouterr().out.count("%") >= 6


def test_a_job_file_is_simulated_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("environment: {name: tiny-sum}\nsteps: 2\ngroups: 2\nsamples: 4\n")
    assert run(str(file), "--format", "json") == 0
    (one,) = json.loads(capsys.readouterr().out)["cases"]
    assert one["jobs"][0]["steps"] == 2
    assert one["n_devices"] == 1


def test_everything_that_can_be_named_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    said = capsys.readouterr().out
    for name in ("plait", "jigsawrl", "h100", "qwen3-235b-a22b", "marlaas/mixed", "plexrl/"):
        assert name in said
    assert run("--list", "--format", "json") == 0
    assert "isolated" in json.loads(capsys.readouterr().out)["policies"]


@pytest.mark.parametrize(
    ("change", "args", "said"),
    [
        ("", ["--policy", "plaid"], "did you mean 'plait'"),
        ("", ["--sweep", "job=1"], "did you mean 'jobs'"),
        ("", ["--price", "-1"], "give what a device costs"),
        ("", ["--alone", "."], "--alone belongs to a recorded launch"),
        ("", ["--device", "cpu"], "--device belongs to a job file"),
        ("", ["--check", "."], "ask for one at a time"),
        ("", ["--sweep", "options.sede=1"], "unknown option 'sede'"),
        ("", ["--sweep", "constants.decode_mfu=1e-300"], "not done after 1e+10 s (a first)"),
        ("h100->h1000", [], "unknown device 'h1000': did you mean 'h100'"),
        ("steps: 2->stepps: 2", [], "did you mean 'steps'"),
        ("groups: 2->groups: -2", [], "groups is -2"),
        ("median: 20->median: -20", [], "a.response"),
        ("model: qwen3-0.6b->model: qwen3-235b-a22b", [], "raise tensor_parallel"),
        ("cluster: {->cluster: [{", [], "not YAML"),
    ],
)
def test_a_wrong_request_is_one_line(
    change: str, args: list[str], said: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, _, new = change.partition("->")
    small.write_text(SMALL.replace(old, new) if old else SMALL)
    assert run(str(small), *args) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_a_sweep_is_checked_before_any_of_it_is_simulated(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("simulated")

    monkeypatch.setattr(sim, "simulate", never)
    small.write_text(SMALL.replace("steps: 2,", "steps: 2, train_devices: 2,"))
    assert run(str(small), "--sweep", "devices=2,1") == 2
    assert "a needs 2 devices, the largest node group has 1" in capsys.readouterr().err
    (small.parent / "file").touch()
    assert run(str(small), "--out", str(small.parent / "file")) == 1
    assert "give another --out" in capsys.readouterr().err


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_same_bytes_whatever_the_hash_seed(small: Path, hash_seed: str) -> None:
    small.write_text(SMALL.replace("kind: fixed, median", "kind: lognormal, sigma: 1, median"))
    args = ["sim", str(small), "--policy", "plait,jigsawrl,marlaas", "--format", "json"]
    said = [
        subprocess.run(
            [sys.executable, "-c", "from plait.cli.entry import main; main()", *args],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", hash_seed)
    ]
    assert said[0] == said[1] != b""


def test_what_the_system_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("x" * 5000) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "File name too long" in error


def test_output_that_cannot_be_written_is_one_line(small: Path) -> None:
    command = [sys.executable, "-c", "from plait.cli.entry import main; main()", "sim", str(small)]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "error: No space left on device: give another place\n"


def test_no_file_and_an_unknown_one_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "plait sim --list" in capsys.readouterr().err
    assert run("marlaas/mixt") == 2
    assert "did you mean 'marlaas/mixed'" in capsys.readouterr().err
    assert run("nowhere.yaml") == 2
    assert "no file nowhere.yaml" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom plait.cli.main import app\n"
        "try:\n    app(['sim', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'torch', 'plait.sim', 'plait.jobs', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert time.perf_counter() - start < 10
