from dataclasses import replace

import pytest

from plait.core.ids import RunId, TenantId
from plait.core.runs import Stage
from plait.core.view import RunView
from plait.policies import fairness
from plait.policies.fairness import AGE_GRANTS, LAG_STEPS, Claim


def run(name: str, **changes) -> RunView:
    plain = RunView(
        run_id=RunId(name),
        tenant_id=TenantId("t"),
        order=ord(name[0]),
        weight=1.0,
        priority=0,
        stage=Stage.WAIT_ROLLOUT,
        stage_since_s=0.0,
        step=0,
        served=0.0,
        kv_blocks=1,
        kv_blocks_worst=1,
    )
    return replace(plain, **changes)


def claims(*runs: RunView) -> list[Claim]:
    return [Claim(run=r, since_s=r.stage_since_s) for r in runs]


def order(state: dict, *runs: RunView, resident=()) -> list[str]:
    return [entry.run.run_id for entry in fairness.rank(state, claims(*runs), resident)]


def waited(*runs: RunView, state: dict | None = None) -> dict:
    return fairness.observe(state or {}, runs, claims(*runs))


def rolling(*runs: RunView) -> list[RunView]:
    return [replace(r, stage=Stage.ROLLOUT) for r in runs]


def test_priority_comes_first_then_wait_then_submission() -> None:
    a, b, c, d = run("a"), run("b", stage_since_s=-5.0), run("c"), run("d", priority=1)
    assert order(waited(a, b, c, d), c, a, b, d) == ["d", "b", "a", "c"]


def test_served_work_counts_against_a_run_by_its_weight() -> None:
    a, b, c = run("a"), run("b"), run("c", weight=10.0)
    state = waited(a, b, c)
    state = fairness.settle(state, fairness.rank(state, claims(a, b, c)), ["a", "b", "c"])
    later = [replace(r, served=s) for r, s in ((a, 5.0), (b, 4.0), (c, 20.0))]
    state = fairness.observe(state, rolling(*later), [])
    assert order(waited(*later, state=state), *later) == ["c", "b", "a"]


def test_resident_state_breaks_ties_only() -> None:
    a, b, c = run("a"), run("b"), run("c", priority=-1)
    assert order(waited(a, b, c), a, b, c, resident=["b", "c"]) == ["b", "a", "c"]
    state = waited(a, b)
    state["runs"]["a"]["tag"] -= 1.0
    assert order(state, a, b, resident=["b"]) == ["a", "b"]


def test_a_newcomer_starts_level_with_who_is_served() -> None:
    a = run("a")
    state = waited(a)
    for served in range(1, 101):
        state = fairness.settle(state, fairness.rank(state, claims(a)), ["a"])
        a = replace(a, served=float(served))
        state = waited(a, state=fairness.observe(state, rolling(a), []))
    b = run("b")
    state = waited(a, b, state=state)
    assert state["runs"]["b"]["tag"] == pytest.approx(99.0)


def test_credit_is_bounded_in_own_steps() -> None:
    a, b = run("a"), run("b")
    state = waited(a, b)
    state = fairness.settle(state, fairness.rank(state, claims(a, b)), ["a", "b"])
    b = replace(b, stage=Stage.IDLE, served=2.0)  # asks for nothing while a gets 1,000 units
    for served in range(1, 1001):
        a = replace(a, served=float(served))
        state = fairness.observe(state, [*rolling(a), b], [])
        state = fairness.observe(state, [a, b], claims(a))
        state = fairness.settle(state, fairness.rank(state, claims(a)), ["a"])
    b = replace(b, stage=Stage.WAIT_ROLLOUT)
    state = waited(a, b, state=state)
    assert state["virtual"]["0"] == 1000.0
    assert state["runs"]["b"]["tag"] == 1000.0 - LAG_STEPS * 2.0


def test_overtaken_runs_become_overdue_and_then_others_have_their_turns() -> None:
    low = run("l")
    state: dict = {}
    grants = []
    for turn in range(4 * (AGE_GRANTS + 1)):
        high = run("h", priority=5, stage_since_s=float(turn), served=float(turn))
        state = fairness.observe(state, [*rolling(high), low], claims(low))
        state = waited(high, low, state=state)
        ranked = fairness.rank(state, claims(high, low))
        state = fairness.settle(state, ranked, [ranked[0].run.run_id])
        grants.append(ranked[0].run.run_id)
    assert grants == (["h"] * AGE_GRANTS + ["l"]) * 4


def test_only_one_is_overdue_at_a_time_the_longest_waiting() -> None:
    lows = [run("k", stage_since_s=3.0), run("l", stage_since_s=1.0), run("m", stage_since_s=2.0)]
    state = waited(*lows)
    for low in lows:
        state["runs"][low.run_id]["over"] = AGE_GRANTS
    state["since_overdue"] = AGE_GRANTS
    ranked = fairness.rank(state, claims(*lows))
    assert [entry.overdue for entry in ranked] == [True, False, False]
    assert ranked[0].run.run_id == "l"
    assert "its turn is next" in fairness.standing(ranked[0])
    assert str(AGE_GRANTS) in fairness.standing(ranked[1])


def test_fair_order_overtakes_nobody() -> None:
    a, b = run("a"), run("b", stage_since_s=9.0)
    state = waited(a, b)
    state["runs"]["a"]["tag"] = 5.0
    ranked = fairness.rank(state, claims(a, b))
    state = fairness.settle(state, ranked, ["b"])
    assert state["runs"]["a"]["over"] == 0
    assert fairness.standing(fairness.rank(state, claims(a))[0]) == ""


def test_who_is_passed_by_in_its_order_is_overtaken() -> None:
    a, b = run("a"), run("b")
    state = waited(a, b)
    state = fairness.settle(state, fairness.rank(state, claims(a, b)), ["b"])
    assert state["runs"]["a"]["over"] == 1


def test_ended_runs_are_forgotten() -> None:
    a, b = run("a"), run("b")
    state = waited(a, b)
    state = fairness.observe(state, [replace(a, stage=Stage.DONE), b], claims(b))
    assert set(state["runs"]) == {"b"}


def test_work_that_is_counted_afresh_lowers_no_tag() -> None:
    a = run("a", served=50.0)
    state = waited(a)
    state["runs"]["a"]["tag"] = 7.0
    state = waited(replace(a, served=0.0), state=state)
    assert state["runs"]["a"]["tag"] == 7.0


def test_a_weight_of_zero_does_not_divide() -> None:
    a = run("a", weight=0.0)
    state = waited(replace(a, served=1.0), state=waited(a))
    assert state["runs"]["a"]["tag"] > 1e5
