from dataclasses import replace

import pytest

from plait.core.ids import OpId, RunId, TenantId
from plait.core.runs import Stage
from plait.core.view import DispatchView, RunView, WorkItem
from plait.policies.dispatch import FairDispatch, FifoDispatch

BOTH = [FairDispatch(), FifoDispatch()]


def run(name: str, stage: Stage = Stage.WAIT_TRAIN, **changes) -> RunView:
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
        kv_blocks=1,
        kv_blocks_worst=1,
    )
    return replace(plain, **changes)


def item(name: str, since_s: float = 0.0, est_s: float = 2.0, op: str = "") -> WorkItem:
    return WorkItem(
        op_id=OpId(op or f"op-{name}"),
        run_id=RunId(name),
        kind="update",
        est_s=est_s,
        tokens=10,
        waiting_since_s=since_s,
    )


def view(*pairs: tuple[RunView, WorkItem], resident: tuple[str, ...] = ()) -> DispatchView:
    return DispatchView(
        items=tuple(i for _, i in pairs),
        runs=tuple({r.run_id: r for r, _ in pairs}.values()),
        resident=tuple(RunId(name) for name in resident),
    )


@pytest.mark.parametrize("policy", BOTH, ids=lambda p: p.name)
def test_nothing_to_do_leaves_the_worker_free(policy) -> None:
    plan, _ = policy.decide(DispatchView(items=(), runs=(run("a"),)), {}, 0.0)
    assert plan.op_id is None
    assert plan.waits == ()


@pytest.mark.parametrize("policy", BOTH, ids=lambda p: p.name)
def test_equals_are_served_in_order_of_arrival_and_told_how_long(policy) -> None:
    facts = view((run("a"), item("a", 3.0)), (run("b"), item("b", 1.0)), (run("c"), item("c", 2.0)))
    plan, _ = policy.decide(facts, {}, 5.0)
    assert plan.op_id == "op-b"
    assert [(w.run_id, w.reason, w.position) for w in plan.waits] == [
        ("c", "trainer_busy", 1),
        ("a", "trainer_busy", 2),
    ]
    assert plan.waits[1].detail == "update stands behind c, about 4.0 s of work"


@pytest.mark.parametrize("policy", BOTH, ids=lambda p: p.name)
def test_paused_and_ended_runs_are_not_served(policy) -> None:
    facts = view(
        (run("a", Stage.PAUSED), item("a")),
        (run("b", Stage.FAILED), item("b")),
        (run("c"), item("c", 9.0)),
    )
    plan, _ = policy.decide(facts, {}, 9.0)
    assert plan.op_id == "op-c"
    assert [(w.run_id, w.reason) for w in plan.waits] == [("a", "paused")]


@pytest.mark.parametrize("policy", BOTH, ids=lambda p: p.name)
def test_a_runs_own_operations_keep_their_order(policy) -> None:
    a = run("a")
    facts = view((a, item("a", 2.0, op="second")), (a, item("a", 1.0, op="first")))
    plan, _ = policy.decide(facts, {}, 5.0)
    assert plan.op_id == "first"
    assert plan.waits == ()


def test_priority_and_served_work_come_before_arrival() -> None:
    pairs = [(run("a"), item("a", 1.0)), (run("b", priority=2), item("b", 9.0))]
    assert FairDispatch().decide(view(*pairs), {}, 9.0)[0].op_id == "op-b"
    assert FifoDispatch().decide(view(*pairs), {}, 9.0)[0].op_id == "op-a"
    a, b = run("a"), run("b")
    _, state = FairDispatch().decide(view((a, item("a")), (b, item("b"))), {}, 0.0)
    later = view((replace(a, served=3.0), item("a", 1.0)), (b, item("b", 2.0)))
    assert FairDispatch().decide(later, state, 2.0)[0].op_id == "op-b"


@pytest.mark.parametrize("policy", BOTH, ids=lambda p: p.name)
def test_an_update_that_has_begun_is_finished_before_another_begins(policy) -> None:
    ending = replace(item("c", 9.0, est_s=0.1), finishes=True)
    facts = view((run("a"), item("a", 1.0)), (run("b"), item("b", 2.0)), (run("c"), ending))
    plan, _ = policy.decide(facts, {}, 9.0)
    assert plan.op_id == "op-c"
    assert [(w.run_id, w.position) for w in plan.waits] == [("a", 1), ("b", 2)]


def test_finishing_an_update_overtakes_nobody() -> None:
    """It belongs to the turn in which the update began, so nobody ages by it."""
    a, c, state = run("a", priority=1), run("c"), {}
    for n in range(20):
        ending = replace(item("c", float(n)), finishes=True)
        facts = view((a, item("a")), (replace(c, served=float(n)), ending))
        plan, state = FairDispatch().decide(facts, state, float(n))
        assert plan.op_id == "op-c"
    assert state["runs"]["a"]["over"] == 0


def test_a_resident_run_goes_first_among_equals() -> None:
    pairs = [(run("a"), item("a", 1.0)), (run("b"), item("b", 1.5))]
    assert FairDispatch().decide(view(*pairs, resident=("b",)), {}, 2.0)[0].op_id == "op-b"
