"""How ``plait run`` ends: exit codes and what it says."""

import json
from pathlib import Path

import pytest

from plait.cli.run import conclude
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
