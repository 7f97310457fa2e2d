"""plait.sim.decisions: recorded launches decide the same again, and a changed policy is noticed."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launches import SCRIPTED, EvenSource, job, launch

from plait.core.errors import ConfigError
from plait.core.ids import OpId, RunId, WorkerId
from plait.core.plan import AdmissionPlan
from plait.core.view import AdmissionView, HomeView, MovableSample, MovesView, RolloutLoad
from plait.obs.jsonl import read_jsonl
from plait.obs.records import plain
from plait.policies.protocol import Sharing, State
from plait.policies.registry import make
from plait.sim.decisions import MAX_SHOWN, VIEWS, check_decisions, check_launch
from plait.sim.rebuild import rebuild

POLICIES: dict[str, dict[str, Any]] = {
    "plait": {},
    "no-multi-lora": {},
    "multi-lora-sync": {},
    "sequential": {},
    "no-admission": {"topology": "collocated"},
    "single-collocated": {},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, byte_model: Path) -> Callable[[str], Path]:
    """A launch of three jobs under a policy, one of them with several turns, made on first use."""
    made: dict[str, Path] = {}

    async def run(directory: Path, name: str) -> None:
        async with launch(directory, byte_model, policy=make(name, **POLICIES[name])) as running:
            for i, n_turns in enumerate((1, 3, 1)):
                running.add_job(job(f"job-{i}", byte_model), EvenSource(n_turns))
            await running.wait_all()

    def one(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("launch") / name
            asyncio.run(run(made[name], name))
        return made[name]

    return one


@pytest.mark.parametrize("policy", POLICIES)
def test_every_plan_of_a_live_launch_is_made_again(
    policy: str, recorded: Callable[[str], Path]
) -> None:
    checked = check_launch(recorded(policy))
    assert checked.same
    assert checked.policy == policy
    assert checked.n_decisions["admission"] >= 12
    assert checked.n_decisions["dispatch"] >= 12
    assert checked.n_decisions["residency"] >= 1


async def _with_workers(directory: Path, model: Path) -> None:
    settings = replace(SCRIPTED, cores=4, rollout_workers=2, training_workers=2)
    async with launch(directory, model, settings=settings) as running:
        for i in range(3):
            running.add_job(job(f"job-{i}", model), EvenSource())
        await running.wait_all()


def test_homes_of_runs_are_found_again(tmp_path: Path, byte_model: Path) -> None:
    asyncio.run(_with_workers(tmp_path / "l", byte_model))
    checked = check_launch(tmp_path / "l")
    assert checked.same
    assert checked.n_decisions["home"] >= 3


def test_moves_are_read() -> None:
    view = MovesView(
        workers=(RolloutLoad(worker_id=WorkerId("r0"), n_samples=2, n_waiting=0, step_s=0.0),),
        samples=(
            MovableSample(
                op_id=OpId("a/1"), worker_id=WorkerId("r0"), n=1, tokens_known=3, tokens_left=4
            ),
        ),
        max_seqs=64,
        lends=True,
        s_per_token=0.001,
        kv_bytes_per_token=8,
    )
    assert rebuild(MovesView, plain(view)) == view
    home = HomeView(run_id=RunId("a"), home=None, others=((WorkerId("t0"), 2),))
    assert rebuild(HomeView, plain(home)) == home
    with pytest.raises(ValueError, match="zip"):
        rebuild(HomeView, {**plain(home), "others": [["t0"]]})


def test_all_that_was_recorded_is_read(recorded: Callable[[str], Path]) -> None:
    for row in read_jsonl(recorded("plait") / "decisions.jsonl"):
        assert plain(rebuild(VIEWS[row["kind"]], row["view"])) == row["view"]


class LastFirst:
    """Lets the run in that came last, whoever asks."""

    name = "last-first"

    def decide(self, view: AdmissionView, state: State, now: float) -> tuple[AdmissionPlan, State]:
        waiting = [run.run_id for run in view.runs if run.stage == "wait_rollout"]
        return AdmissionPlan(admit=tuple(waiting[-1:])), state


def test_a_changed_policy_is_noticed(recorded: Callable[[str], Path]) -> None:
    def changed(name: str, **options: Any) -> Sharing:
        return replace(make(name, **options), admission=LastFirst())

    checked = check_launch(recorded("sequential"), make=changed)
    assert not checked.same
    assert {difference.kind for difference in checked.differences} == {"admission"}
    assert 0 < len(checked.differences) <= MAX_SHOWN
    assert checked.differences[0].recorded != checked.differences[0].now


def test_another_policy_under_the_name_is_noticed(recorded: Callable[[str], Path]) -> None:
    rows = list(read_jsonl(recorded("sequential") / "decisions.jsonl"))
    assert not check_decisions(rows, make=lambda name, **options: make("multi-lora-sync")).same


def test_a_policy_that_remembers_its_state_wrongly_is_noticed(
    recorded: Callable[[str], Path],
) -> None:
    rows = list(read_jsonl(recorded("plait") / "decisions.jsonl"))
    turned = next(r for r in rows if r["kind"] == "dispatch" and len(r["view"]["items"]) > 1)
    wrong = {**turned, "plan": {**turned["plan"], "op_id": turned["view"]["items"][0]["op_id"]}}
    if wrong == turned:
        wrong["plan"]["op_id"] = turned["view"]["items"][1]["op_id"]
    checked = check_decisions([wrong])
    assert checked.n_different == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 0}, "is of version 0, not 1"),
        ({"version": None}, "is of version None"),
        ({"kind": "astrology"}, "no decision that this version can read"),
        ({"policy": "plaid"}, "did you mean 'plait'"),
        ({"options": {"max_activ": 1}}, "did you mean 'max_active'"),
        ({"view": {"budget": 1}}, "no field 'budget'"),
        ({"view": {"budget_blocks": "many", "runs": []}}, "'many' is no int"),
        ({"options": [1]}, "no decision that this version can read"),
        ({"t": "noon"}, "no decision that this version can read"),
        ({"plan": ...}, "no decision that this version can read .KeyError: 'plan'"),
    ],
)
def test_a_line_that_cannot_be_read_is_told(
    change: dict[str, Any], said: str, recorded: Callable[[str], Path]
) -> None:
    rows = list(read_jsonl(recorded("plait") / "decisions.jsonl"))
    first = next(row for row in rows if row["kind"] == "admission")
    changed = {k: v for k, v in {**first, **change}.items() if v is not ...}
    with pytest.raises(ConfigError, match=said) as caught:
        check_decisions([first, changed], where="decisions.jsonl")
    assert str(caught.value).startswith("decisions.jsonl:2")
    assert "\n" not in str(caught.value)


def test_a_policy_that_raises_is_told(recorded: Callable[[str], Path]) -> None:
    class Divides(LastFirst):
        def decide(
            self, view: AdmissionView, state: State, now: float
        ) -> tuple[AdmissionPlan, State]:
            raise ZeroDivisionError("division by zero")

    rows = list(read_jsonl(recorded("plait") / "decisions.jsonl"))
    with pytest.raises(ConfigError, match="ZeroDivisionError: division by zero"):
        check_decisions(
            [row for row in rows if row["kind"] == "admission"],
            make=lambda name, **options: replace(make(name, **options), admission=Divides()),
        )


def test_what_is_no_launch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no launch directory"):
        check_launch(tmp_path)
    (tmp_path / "launch.json").write_text(json.dumps({"policy": "plait"}))
    with pytest.raises(ConfigError, match=r"has no decisions\.jsonl"):
        check_launch(tmp_path)
