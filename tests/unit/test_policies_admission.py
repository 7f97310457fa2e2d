from dataclasses import replace

from plait.core.ids import RunId, TenantId
from plait.core.plan import AdmissionPlan
from plait.core.runs import Stage
from plait.core.view import AdmissionView, RunView
from plait.policies.admission import KvAdmission
from plait.policies.fairness import AGE_GRANTS


def run(name: str, blocks: int = 10, stage: Stage = Stage.WAIT_ROLLOUT, **changes) -> RunView:
    plain = RunView(
        run_id=RunId(name),
        tenant_id=TenantId("t"),
        order=ord(name[0]),
        weight=1.0,
        priority=0,
        stage=stage,
        stage_since_s=0.0,
        step=0,
        served=0.0,
        kv_blocks=blocks,
        kv_blocks_worst=3 * blocks,
    )
    return replace(plain, **changes)


def decide(*runs: RunView, budget: int = 30, state: dict | None = None, **options) -> AdmissionPlan:
    view = AdmissionView(budget_blocks=budget, runs=runs)
    return KvAdmission(**options).decide(view, state or {}, 0.0)[0]


def test_runs_are_admitted_up_to_the_budget_and_no_further() -> None:
    plan = decide(run("a"), run("b"), run("c"), run("d"))
    assert plan.admit == ("a", "b", "c")
    (wait,) = plan.waits
    assert (wait.run_id, wait.reason, wait.position) == ("d", "kv_budget", 1)
    assert wait.detail == "needs 10 cache blocks, 0 of 30 are free"


def test_what_rolls_out_already_counts() -> None:
    assert decide(run("a", 25, Stage.ROLLOUT), run("b"), run("c", 5)).admit == ("c",)
    assert decide(run("a", 25, Stage.WAIT_TRAIN), run("b"), run("c", 5)).admit == ("b", "c")


def test_an_evaluation_counts_like_a_rollout() -> None:
    assert (
        decide(run("a", 25, Stage.ROLLOUT, evaluating=True), run("b", evaluating=True)).admit == ()
    )


def test_the_first_is_admitted_whatever_its_size_when_nothing_rolls_out() -> None:
    plan = decide(run("a", 100), run("b", 1))
    assert plan.admit == ("a",)
    assert plan.waits[0].reason == "kv_budget"


def test_a_smaller_one_passes_by_what_does_not_fit() -> None:
    plan = decide(run("a", 20, Stage.ROLLOUT), run("b", 20), run("c", 10))
    assert plan.admit == ("c",)


def test_room_is_kept_for_an_overdue_run() -> None:
    runs = [run("a", 20, Stage.ROLLOUT), run("b", 20), run("c", 10)]
    view = AdmissionView(budget_blocks=30, runs=tuple(runs))
    _, state = KvAdmission().decide(view, {}, 0.0)
    state["runs"]["b"]["over"] = AGE_GRANTS
    state["since_overdue"] = AGE_GRANTS
    plan, _ = KvAdmission().decide(view, state, 0.0)
    assert plan.admit == ()
    assert [wait.run_id for wait in plan.waits] == ["b", "c"]
    assert "its turn is next" in plan.waits[0].detail
    assert "kept for b" in plan.waits[1].detail
    drained = replace(view, runs=tuple(runs[1:]))
    assert KvAdmission().decide(drained, state, 0.0)[0].admit == ("b", "c")


def test_the_worst_case_can_be_reserved_instead() -> None:
    runs = [run("a"), run("b")]
    assert decide(*runs, estimate="worst").admit == ("a",)
    assert decide(*runs).admit == ("a", "b")


def test_max_active_limits_the_runs_and_says_so() -> None:
    plan = decide(run("a", 1, Stage.ROLLOUT), run("b", 1), max_active=1)
    assert plan.admit == ()
    assert plan.waits[0].reason == "turn"
    assert "1 of at most 1" in plan.waits[0].detail


def test_paused_runs_are_told_so_and_hold_no_room() -> None:
    plan = decide(run("a", 30, Stage.PAUSED), run("b", 30))
    assert plan.admit == ("b",)
    assert [(w.run_id, w.reason) for w in plan.waits] == [("a", "paused")]


def test_ended_runs_are_left_out() -> None:
    plan = decide(run("a", 30, Stage.DONE), run("b", 30, Stage.FAILED), run("c", 30))
    assert plan == AdmissionPlan(admit=(RunId("c"),))
