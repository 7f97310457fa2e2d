"""What the recorder leaves on disk, and that a resumed launch goes on where it stopped."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from obs_launch import info, two_job_launch

from plait.core.errors import ConfigError
from plait.core.ids import RunId, WorkerId
from plait.core.plan import AdmissionPlan, Wait
from plait.core.runs import Stage
from plait.core.view import AdmissionView, RunView
from plait.obs.jsonl import read_jsonl
from plait.obs.layout import LaunchLayout
from plait.obs.recorder import Recorder, running_s
from plait.obs.records import Span


def test_the_files_are_where_the_guide_says(tmp_path: Path) -> None:
    two_job_launch(tmp_path / "l")
    found = {str(p.relative_to(tmp_path / "l")) for p in (tmp_path / "l").rglob("*.json*")}
    assert found == {
        "launch.json",
        "decisions.jsonl",
        "workers.jsonl",
        "events.jsonl",
        "jobs/a/metrics.jsonl",
        "jobs/a/samples.jsonl",
        "jobs/b/metrics.jsonl",
        "jobs/b/samples.jsonl",
    }


def test_metrics_samples_and_events_carry_their_columns(tmp_path: Path) -> None:
    layout = LaunchLayout(two_job_launch(tmp_path / "l"))
    step = next(iter(read_jsonl(layout.job("a").metrics)))
    assert list(step) == [
        *("t", "step", "version", "reward_mean", "reward_n", "reward_errors", "groups"),
        *("groups_skipped", "tokens_sampled", "loss", "grad_norm", "lr", "staleness", "kl"),
        *("sampler_trainer_logprob_max_diff", "rollout_s", "reward_s", "reference_s", "train_s"),
        *("publish_s", "wait_s", "step_s"),
    ]
    assert step["t"] == 5.0
    evaluation = list(read_jsonl(layout.job("a").metrics))[-1]
    assert (evaluation["eval_n"], evaluation["eval_reward_mean"]) == (40, 0.75)
    sample = next(iter(read_jsonl(layout.job("a").samples)))
    assert (sample["reward"], sample["error"], sample["why"]) == (1.0, None, "exact")
    added = next(iter(read_jsonl(layout.events)))
    assert added == {"job": "a", "t": 1.0, "run": "run-a", "kind": "added"}


def test_an_algorithms_own_figures_become_columns(tmp_path: Path) -> None:
    from plait.obs.records import StepMetrics, as_row

    row = StepMetrics(
        step=1,
        version=1,
        reward_mean=None,
        reward_n=0,
        reward_errors=8,
        groups=2,
        groups_skipped=2,
        tokens_sampled=0,
        loss=None,
        grad_norm=None,
        lr=0.0,
        extra={"clip_share": 0.25, "step": 9.0},
    )
    assert as_row(row)["clip_share"] == 0.25
    assert as_row(row)["step"] == 1


def test_a_decision_keeps_all_that_the_policy_was_told(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, origin_s=50.0, policy_options={"max_active": 2})
    run = RunView(
        run_id=RunId("r"),
        tenant_id="local",  # type: ignore[arg-type]
        order=0,
        weight=1.0,
        priority=0,
        stage=Stage.WAIT_ROLLOUT,
        stage_since_s=51.0,
        step=0,
        served=0.0,
        kv_blocks=4,
        kv_blocks_worst=8,
    )
    recorder.decision(
        "admission",
        policy="plait",
        view=AdmissionView(budget_blocks=2, runs=(run,)),
        state={"credit": {"local": 1.5}},
        plan=AdmissionPlan(waits=(Wait(run_id=RunId("r"), reason="kv_budget"),)),
        now=52.0,
    )
    recorder.close()
    (row,) = read_jsonl(tmp_path / "decisions.jsonl")
    assert (row["t"], row["now"], row["policy"], row["kind"]) == (2.0, 52.0, "plait", "admission")
    assert row["view"]["runs"][0]["stage"] == "wait_rollout"
    assert RunView(**row["view"]["runs"][0]) == run
    assert row["options"] == {"max_active": 2}
    assert row["state"] == {"credit": {"local": 1.5}}
    assert row["plan"]["waits"][0]["reason"] == "kv_budget"


def test_a_resumed_launch_goes_on_where_its_files_end(tmp_path: Path) -> None:
    first = Recorder(tmp_path, origin_s=1000.0)
    first.event("started", now=1010.0)
    first.span(Span(worker=WorkerId("w"), kind="rollout", t0=1010.0, t1=1030.0))
    first.close()
    assert running_s(tmp_path) == 30.0
    again = Recorder(tmp_path, origin_s=5.0)  # another process, another clock
    again.event("resumed", now=6.0)
    again.close()
    assert [e["t"] for e in read_jsonl(tmp_path / "events.jsonl")] == [10.0, 31.0]


def test_launch_json_is_replaced_whole(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, origin_s=0.0)
    recorder.launch(info("first"))
    recorder.launch(info("second"))
    recorder.close()
    assert json.loads((tmp_path / "launch.json").read_text())["policy"] == "second"
    assert not (tmp_path / "tmp-launch.json").exists()


def test_a_job_has_one_recorder(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, origin_s=0.0)
    assert recorder.job("a", RunId("r")) is recorder.job("a", RunId("r"))
    recorder.close()


@pytest.mark.parametrize("name", ["", "..", "a/b", "."])
def test_a_name_that_leaves_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no directory name"):
        LaunchLayout(tmp_path).job(name)


def test_any_core_value_becomes_json() -> None:
    from plait.obs.records import plain

    @dataclass(frozen=True, slots=True)
    class Inner:
        x: tuple[int, ...]

    assert plain({1: Inner((1, 2)), "s": {3}}) == {"1": {"x": [1, 2]}, "s": [3]}
