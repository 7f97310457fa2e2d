"""How ``plait run`` ends: exit codes and what it says."""

import json
from pathlib import Path

import pytest

from plait.cli.run import check_new, conclude, policy_options
from plait.core.errors import ConfigError
from plait.core.runs import Stage
from plait.jobs.launch import Outcome

DONE = Outcome(stage=Stage.DONE, reason="finished 3 steps")
FAILED = Outcome(stage=Stage.FAILED, reason="it is broken: mend it")


def test_all_well() -> None:
    assert conclude({"a": DONE}, ["a"], Path("d"), as_json=False) == 0


def test_one_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude({"a": DONE, "b": FAILED}, ["a", "b"], Path("d"), as_json=False) == 1
    assert "b: failed: it is broken: mend it" in capsys.readouterr().out.splitlines()


def test_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude({"a": FAILED}, ["a", "b"], Path("d"), as_json=True) == 130
    said = capsys.readouterr()
    assert json.loads(said.out)["interrupted"] == ["b"]
    assert said.err == "interrupted: go on with  plait run --resume d\n"


def test_a_launch_gets_a_new_or_an_empty_directory(tmp_path: Path) -> None:
    check_new(tmp_path)
    check_new(tmp_path / "new")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="not an empty directory: give --dir a new one"):
        check_new(tmp_path)
    with pytest.raises(ConfigError, match="not an empty directory"):
        check_new(tmp_path / "thesis.tex")
    (tmp_path / "launch.json").touch()
    with pytest.raises(ConfigError, match="holds a launch already: use --resume"):
        check_new(tmp_path)


def test_options_of_the_policy_are_pairs() -> None:
    found = policy_options(["dispatch=fifo", "max_active=2"])
    assert found == {"dispatch": "fifo", "max_active": 2}
    assert policy_options(["stretch=1.5", "x=1.", "y=a.5"]) == {
        "stretch": 1.5,
        "x": "1.",
        "y": "a.5",
    }
    for wrong in ("dispatch", "=fifo", "dispatch="):
        with pytest.raises(ConfigError, match="key=value"):
            policy_options([wrong])
