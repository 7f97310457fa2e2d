from dataclasses import replace

from plait.core.ids import OpId, RunId, TenantId
from plait.core.runs import Stage
from plait.core.view import AdmissionView, DispatchView, RunView, WorkItem
from plait.policies.baselines.one_at_a_time import IDLE_GRACE_S, OneAtATime
from plait.policies.baselines.rounds import RoundAdmission, RoundDispatch
from plait.policies.baselines.unlimited import AdmitAll


def run(name: str, stage: Stage = Stage.WAIT_ROLLOUT, since_s: float = 0.0) -> RunView:
    return RunView(
        run_id=RunId(name),
        tenant_id=TenantId("t"),
        order=ord(name[0]),
        weight=1.0,
        priority=0,
        stage=stage,
        stage_since_s=since_s,
        step=0,
        served=0.0,
        kv_blocks=10,
        kv_blocks_worst=10,
    )


def admit(policy, *runs: RunView, state: dict | None = None, now: float = 0.0):
    return policy.decide(AdmissionView(budget_blocks=1, runs=runs), state or {}, now)


def item(name: str, kind: str = "update") -> WorkItem:
    return WorkItem(
        op_id=OpId(f"op-{name}"),
        run_id=RunId(name),
        kind=kind,
        est_s=1.0,
        tokens=1,
        waiting_since_s=0.0,
    )


def test_one_at_a_time_keeps_to_submission_order() -> None:
    plan, state = admit(OneAtATime(), run("b"), run("a"))
    assert plan.admit == ("a",)
    assert [(w.run_id, w.reason, w.position) for w in plan.waits] == [("b", "turn", 1)]
    assert "a is being served" in plan.waits[0].detail
    for stage in (Stage.ROLLOUT, Stage.WAIT_TRAIN, Stage.TRAIN, Stage.IDLE):
        assert admit(OneAtATime(), run("a", stage), run("b"), state=state)[0].admit == ()
    assert admit(OneAtATime(), run("a", Stage.DONE), run("b"), state=state)[0].admit == ("b",)


def test_one_at_a_time_goes_on_past_a_paused_job_and_does_not_go_back() -> None:
    _, state = admit(OneAtATime(), run("a"), run("b"))
    plan, state = admit(OneAtATime(), run("a", Stage.PAUSED), run("b"), state=state)
    assert plan.admit == ("b",)
    assert [w.reason for w in plan.waits] == ["paused"]
    plan, state = admit(OneAtATime(), run("a"), run("b"), state=state)
    assert plan.admit == ("b",)


def test_one_at_a_time_does_not_wait_for_ever_for_an_idle_client() -> None:
    runs = (run("a", Stage.IDLE), run("b"))
    _, state = admit(OneAtATime(), *runs)
    assert admit(OneAtATime(), *runs, state=state, now=IDLE_GRACE_S)[0].admit == ()
    assert admit(OneAtATime(), *runs, state=state, now=IDLE_GRACE_S + 1)[0].admit == ("b",)


def test_one_at_a_time_never_starts_beside_a_run_in_mid_step() -> None:
    for state in ({}, {"current": "a"}, {"current": "b"}):
        plan, _ = admit(OneAtATime(), run("a"), run("b", Stage.TRAIN), state=state)
        assert plan.admit == ()


def test_a_round_opens_when_all_are_there() -> None:
    assert admit(RoundAdmission(), run("a"), run("b"))[0].admit == ("a", "b")
    for stage in (Stage.ROLLOUT, Stage.WAIT_TRAIN, Stage.TRAIN, Stage.IDLE):
        plan, _ = admit(RoundAdmission(), run("a"), run("b", stage))
        assert plan.admit == ()
        assert [(w.run_id, w.reason) for w in plan.waits] == [("a", "barrier")]
        assert "waits for b" in plan.waits[0].detail


def test_ended_paused_and_long_idle_runs_hold_no_barrier() -> None:
    for stage in (Stage.DONE, Stage.FAILED, Stage.CANCELLED, Stage.PAUSED):
        assert admit(RoundAdmission(), run("a"), run("b", stage))[0].admit == ("a",)
    idle = run("b", Stage.IDLE)
    assert admit(RoundAdmission(), run("a"), idle, now=IDLE_GRACE_S + 1)[0].admit == ("a",)


def test_updates_wait_for_the_rounds_last_rollout() -> None:
    runs = (run("a", Stage.WAIT_TRAIN), run("b", Stage.ROLLOUT))
    view = DispatchView(items=(item("a"),), runs=runs)
    plan, _ = RoundDispatch().decide(view, {}, 0.0)
    assert plan.op_id is None
    assert [(w.run_id, w.reason) for w in plan.waits] == [("a", "barrier")]
    done = replace(view, runs=(runs[0], run("b", Stage.WAIT_TRAIN)))
    assert RoundDispatch().decide(done, {}, 0.0)[0].op_id == "op-a"


def test_what_is_no_update_passes_the_barrier() -> None:
    """A new run's creation, or what a rollout needs, would otherwise wait for itself."""
    runs = (run("a", Stage.WAIT_TRAIN), run("b", Stage.ROLLOUT), run("c", Stage.IDLE))
    view = DispatchView(items=(item("a"), item("c", "create")), runs=runs)
    plan, _ = RoundDispatch().decide(view, {}, 0.0)
    assert plan.op_id == "op-c"
    view = DispatchView(items=(item("a"), item("b", "forward")), runs=runs)
    assert RoundDispatch().decide(view, {}, 0.0)[0].op_id == "op-b"


def test_without_admission_the_budget_does_not_matter() -> None:
    plan, _ = admit(AdmitAll(), run("b"), run("a"), run("c", Stage.PAUSED))
    assert plan.admit == ("a", "b")
    assert [w.reason for w in plan.waits] == ["paused"]
