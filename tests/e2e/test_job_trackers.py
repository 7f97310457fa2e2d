"""Trackers of a job: figures of every step reach them, and what they do stops nothing."""

import sys
from pathlib import Path

import pytest
from launches import EvenSource, job, launch, rows, run_jobs

from plait.core.runs import Stage
from plait.obs.jsonl import read_jsonl

pytestmark = pytest.mark.e2e

WANDB = """
calls = []

class Run:
    def log(self, metrics, step):
        calls.append((step, metrics))
        if fails_at == step:
            raise OSError("gone")

    def finish(self):
        calls.append("finished")

def init(**arguments):
    calls.append(arguments)
    return Run()

fails_at = None
"""


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A package of that name which remembers what it is told."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    import wandb

    yield wandb
    sys.modules.pop("wandb", None)


async def test_every_step_and_evaluation_is_logged(wandb, byte_model, tmp_path) -> None:  # type: ignore[no-untyped-def]
    spec = job("one", byte_model, trackers=["wandb"], evaluation={"every": 2, "items": 2})
    await run_jobs(tmp_path / "launch", byte_model, [spec])
    start, *logged, end = wandb.calls
    assert start["name"] == "one"
    assert start["config"]["groups"] == spec.groups
    assert start["dir"] == str(tmp_path / "launch" / "jobs" / "one")
    assert end == "finished"
    written = rows(tmp_path / "launch", "one")
    assert [step for step, _ in logged] == [row["step"] for row in written]
    for (_, figures), row in zip(logged, written, strict=True):
        shown = {"reward_mean", "eval_reward_mean", "grad_norm"} & row.keys()
        assert shown
        assert all(figures[key] == row[key] for key in shown)


async def test_a_failing_tracker_is_reported_and_stops_nothing(  # type: ignore[no-untyped-def]
    wandb, byte_model, tmp_path
) -> None:
    wandb.fails_at = 2
    async with launch(tmp_path / "launch", byte_model) as running:
        running.add_job(job("one", byte_model, trackers=["wandb"]), EvenSource())
        assert (await running.wait("one")).stage is Stage.DONE
    assert [call[0] for call in wandb.calls[1:]] == [1, 2]
    events = read_jsonl(tmp_path / "launch" / "events.jsonl")
    texts = [row["text"] for row in events if row["kind"] == "tracker"]
    assert texts == ["tracker wandb is off: OSError: gone"]
