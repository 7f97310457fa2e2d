from dataclasses import replace

import pytest

from plait.core.ids import OpId, RunId, TenantId
from plait.core.plan import DispatchPlan
from plait.core.runs import Stage
from plait.core.view import DispatchView, RunView, WorkItem
from plait.policies.baselines.round_robin import RoundRobin
from plait.policies.baselines.sjf import ShortestFirst
from plait.policies.hrrn import HrrnDispatch


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


def item(name: str, est_s: float = 10.0, since_s: float = 0.0, **changes) -> WorkItem:
    plain = WorkItem(
        op_id=OpId(f"op-{name}"),
        run_id=RunId(name),
        kind="ForwardBackward",
        est_s=est_s,
        tokens=1,
        waiting_since_s=since_s,
    )
    return replace(plain, **changes)


def decide(
    *items: WorkItem, policy=None, runs=None, resident=(), now: float = 100.0, state=None
) -> DispatchPlan:
    runs = runs or [run(i.run_id) for i in items]
    view = DispatchView(items=items, runs=tuple(runs), resident=resident)
    return (policy or HrrnDispatch()).decide(view, state or {}, now)[0]


def test_the_ratio_by_hand() -> None:
    """W/S: a 100/20 = 5, b 60/10 = 6, c 100/(10 + 30) = 2.5."""
    items = (item("a", 20.0), item("b", 10.0, 40.0), item("c", 10.0, switch_s=30.0))
    plan = decide(*items)
    assert plan.op_id == "op-b"
    assert [w.run_id for w in plan.waits] == ["a", "c"]
    assert [w.position for w in plan.waits] == [1, 2]
    assert all(w.reason == "trainer_busy" and w.detail for w in plan.waits)


def test_without_the_switch_in_the_service_time_the_choice_is_another() -> None:
    items = (item("a", 10.0, 20.0), item("c", 10.0, switch_s=30.0))
    assert decide(*items).op_id == "op-a"
    assert decide(*items, policy=HrrnDispatch(switch_aware=False)).op_id == "op-c"


def test_a_run_whose_state_is_here_needs_no_switch() -> None:
    items = (item("a", 10.0, 20.0), item("c", 10.0, switch_s=30.0))
    assert decide(*items, resident=(RunId("c"),)).op_id == "op-c"


def test_operations_of_who_is_here_follow_each_other_until_the_other_has_waited_enough() -> None:
    """a's next comes every 10 s and has waited 10 s; c, with a switch of 90 s, goes first when
    W/100 > 10/10."""
    served = []
    for now in range(10, 151, 10):
        items = (item("a", 10.0, now - 10.0), item("c", 10.0, 0.0, switch_s=90.0))
        served.append(decide(*items, resident=(RunId("a"),), now=float(now)).op_id)
    assert served == ["op-a"] * 9 + ["op-c"] * 6


def test_waiting_outweighs_any_priority_weight_and_length() -> None:
    items = (item("a", 1000.0, 0.0, switch_s=100.0), item("b", 1.0, 999_999.0))
    runs = [run("a", priority=-5, weight=0.1), run("b", priority=5)]
    assert decide(*items, runs=runs, now=1_000_000.0).op_id == "op-b"
    late = (items[0], replace(items[1], waiting_since_s=1e9 - 0.001))
    assert decide(*late, runs=runs, now=1e9).op_id == "op-a"


def test_paused_and_ended_runs_are_left_alone_and_finishes_go_first() -> None:
    items = (item("a"), item("b"), item("c", since_s=99.0, finishes=True), item("d"))
    runs = [run("a", Stage.PAUSED), run("b", Stage.DONE), run("c"), run("d")]
    plan = decide(*items, runs=runs)
    assert plan.op_id == "op-c"
    assert [(w.run_id, w.reason) for w in plan.waits] == [("d", "trainer_busy"), ("a", "paused")]
    assert decide(items[0], runs=runs).op_id is None


def test_what_costs_nothing_does_not_divide() -> None:
    assert decide(item("a", 0.0), item("b")).op_id == "op-a"


def test_small_gradients_share_the_pass_of_the_first() -> None:
    plan = decide(item("a", rows=100), item("b", rows=100), item("c", rows=100))
    assert (plan.op_id, plan.along) == ("op-a", ("op-b",))


@pytest.mark.parametrize("policy", [HrrnDispatch(), ShortestFirst(), RoundRobin()])
def test_nothing_to_do(policy) -> None:
    assert decide(policy=policy) == DispatchPlan()


def test_shortest_first() -> None:
    assert decide(item("a", 9.0), item("b", 3.0, 50.0), policy=ShortestFirst()).op_id == "op-b"


def test_round_robin_goes_round() -> None:
    state: dict = {}
    served = []
    for _ in range(5):
        items = tuple(item(name) for name in "abc")
        view = DispatchView(items=items, runs=tuple(run(name) for name in "abc"))
        plan, state = RoundRobin().decide(view, state, 0.0)
        served.append(plan.op_id)
    assert served == ["op-a", "op-b", "op-c", "op-a", "op-b"]
    view = DispatchView(items=(item("a", finishes=True), item("c")), runs=(run("a"), run("c")))
    plan, after = RoundRobin().decide(view, state, 0.0)
    assert plan.op_id == "op-a"
    assert after == state, "the end of an update is part of its turn"
