from dataclasses import replace

import pytest

from plait.core.errors import ConfigError
from plait.core.ids import RunId, TenantId
from plait.core.placement import (
    Demand,
    GroupFacts,
    GroupId,
    PlacedRun,
    PlacementPlan,
    PlacementView,
    WaitingRun,
)
from plait.policies import waits
from plait.policies.node_groups import CyclicPlacement
from plait.policies.node_queue import AGE_BINDS
from plait.policies.quotas import Quota

HALF = Demand(period_s=100.0, bins=(1.0, 1.0, 0.0, 0.0))
"""Busy for 50 s, idle for 50 s."""
WHOLE = Demand(period_s=100.0, bins=(1.0,))


def waiting(name: str, demand: Demand | None = HALF, **changes) -> WaitingRun:
    plain = WaitingRun(
        run_id=RunId(name),
        tenant_id=TenantId("t"),
        order=ord(name[0]),
        since_s=0.0,
        n_devices=8,
        device_bytes=10,
        host_bytes=10,
        slack_s=0.0,
        demand=demand,
    )
    return replace(plain, **changes)


def placed(name: str, demand: Demand | None = HALF, **changes) -> PlacedRun:
    plain = PlacedRun(run_id=RunId(name), demand=demand, phase_s=0.0, host_bytes=10, slack_s=0.0)
    return replace(plain, **changes)


def group(name: str, *runs: PlacedRun, **changes) -> GroupFacts:
    plain = GroupFacts(
        group_id=GroupId(name), n_devices=8, device_bytes=10, host_bytes=40, runs=runs
    )
    return replace(plain, **changes)


def decide(
    groups: list[GroupFacts],
    *runs: WaitingRun,
    state: dict | None = None,
    now: float = 0.0,
    **options,
) -> tuple[PlacementPlan, dict]:
    view = PlacementView(groups=tuple(groups), waiting=runs)
    return CyclicPlacement(**options).decide(view, state or {}, now)


def where(plan: PlacementPlan) -> dict[str, str]:
    return {b.run_id: b.group_id for b in plan.bind}


def why(plan: PlacementPlan) -> dict[str, str]:
    return {w.run_id: w.reason for w in plan.waits}


def test_two_halves_are_interleaved_by_their_phases() -> None:
    plan, _ = decide([group("g", placed("a"))], waiting("b"))
    (binding,) = plan.bind
    assert binding.group_id == "g"
    assert binding.phase_s == pytest.approx(50.0, abs=100 / 32)


def test_a_phase_keeps_clear_of_jitter_on_both_sides() -> None:
    """A quarter fits in the idle half anywhere; in its middle it is farthest from both ends."""
    quarter = Demand(period_s=100.0, bins=(1.0, 0.0, 0.0, 0.0))
    plan, _ = decide([group("g", placed("a"))], waiting("b", quarter))
    assert 55.0 <= plan.bind[0].phase_s <= 70.0


def test_what_would_delay_beyond_slack_waits_and_says_so() -> None:
    groups = [group("g", placed("a", WHOLE))]
    plan, _ = decide(groups, waiting("b"))
    assert not plan.bind
    assert why(plan) == {"b": waits.SLACK}
    # Each step of b meets 50 s of a's, and each of a's 50 s of b's.
    assert not decide(groups, waiting("b", slack_s=60.0))[0].bind
    patient = [group("g", placed("a", WHOLE, slack_s=60.0))]
    assert not decide(patient, waiting("b", slack_s=40.0))[0].bind
    assert where(decide(patient, waiting("b", slack_s=60.0))[0]) == {"b": "g"}


def test_the_gap_that_matches_is_found_among_groups() -> None:
    crowded = Demand(period_s=100.0, bins=(1.0, 1.0, 1.0, 0.0))
    groups = [group("f", placed("a", crowded)), group("g", placed("b"))]
    assert where(decide(groups, waiting("c"))[0]) == {"c": "g"}


def test_host_memory_is_a_hard_limit() -> None:
    light = Demand(period_s=100.0, bins=(0.1,))
    plan, _ = decide([group("g", placed("a", light, host_bytes=35))], waiting("b", light))
    assert why(plan) == {"b": waits.HOST_MEMORY}


def test_device_memory_and_size_are_too() -> None:
    plan, _ = decide([group("g")], waiting("a", device_bytes=11), waiting("b", n_devices=9))
    assert why(plan) == {"a": waits.NEVER_FITS, "b": waits.NEVER_FITS}


def test_who_can_never_fit_holds_up_nobody() -> None:
    plan, _ = decide([group("g")], waiting("a", n_devices=99), waiting("b"), backfill=False)
    assert where(plan) == {"b": "g"}


def test_the_smallest_group_that_is_large_enough_is_taken() -> None:
    plan, _ = decide([group("f", n_devices=64), group("g")], waiting("a"))
    assert where(plan) == {"a": "g"}


def test_equal_ones_spread_or_pack() -> None:
    groups = [group("f", placed("a")), group("g")]
    assert where(decide(groups, waiting("b"))[0]) == {"b": "g"}
    assert where(decide(groups, waiting("b"), prefer="pack")[0]) == {"b": "f"}


def test_a_cold_run_gets_an_empty_group_and_is_joined_by_nobody() -> None:
    plan, state = decide([group("f", placed("a")), group("g")], waiting("b", None, slack_s=999.0))
    assert where(plan) == {"b": "g"}
    groups = [group("f", placed("a", WHOLE)), group("g", placed("b", None, slack_s=999.0))]
    plan, state = decide(groups, waiting("c", slack_s=99.0), state=state)
    assert why(plan) == {"c": waits.SLACK}
    plan, _ = decide(groups[1:], waiting("c", slack_s=99.0))
    assert why(plan) == {"c": waits.PROFILING}
    profiled = [groups[0], group("g", placed("b"))]
    assert where(decide(profiled, waiting("c"), state=state)[0]) == {"c": "g"}


def test_a_cold_run_takes_the_idlest_where_none_is_empty_and_slack_allows() -> None:
    groups = [
        group("f", placed("a", slack_s=60.0)),
        group("g", placed("b", Demand(period_s=100.0, bins=(0.3, 0.0)), slack_s=60.0)),
    ]
    assert where(decide(groups, waiting("c", None))[0]) == {"c": "g"}


def test_without_backfill_nobody_overtakes() -> None:
    groups = [group("f", placed("a", WHOLE), n_devices=16), group("g")]
    big = waiting("b", n_devices=16)
    plan, _ = decide(groups, big, waiting("c"), backfill=False)
    assert why(plan) == {"b": waits.SLACK, "c": waits.BEHIND}
    plan, _ = decide(groups, big, waiting("c"))
    assert where(plan) == {"c": "g"}


def test_only_what_ends_in_time_backfills_the_group_that_is_kept() -> None:
    """Group f is expected to be free at 1000 s; b needs all of it."""
    plan, state = decide([group("f")], waiting("a", expected_s=1000.0))
    groups = [group("f", placed("a"))]
    runs = [
        waiting("b", WHOLE),
        waiting("c", expected_s=1500.0),
        waiting("d"),
        waiting("e", expected_s=800.0),
    ]
    plan, state = decide(groups, *runs, state=state, now=100.0)
    assert why(plan) == {"b": waits.SLACK, "c": waits.RESERVED, "d": waits.RESERVED}
    assert where(plan) == {"e": "f"}
    assert "kept for b" in plan.waits[1].detail
    assert state["reserved"] == {"run": "b", "group": "f", "at": 1000.0}
    plan, _ = decide([group("f")], *runs[:3], state=state, now=900.0)
    assert where(plan) == {"b": "f"}


def test_an_overdue_run_has_its_group_to_itself() -> None:
    plan, state = decide([group("f")], waiting("a", expected_s=1000.0))
    groups = [group("f", placed("a"))]
    big, short = waiting("b", WHOLE), waiting("e", expected_s=10.0)
    assert where(decide(groups, big, short, state=state)[0]) == {"e": "f"}
    _, state = decide(groups, big, state=state)
    state["queue"]["b"]["over"] = state["since_overdue"] = AGE_BINDS
    plan, _ = decide(groups, big, short, state=state)
    assert why(plan) == {"b": waits.SLACK, "e": waits.RESERVED}


def test_a_bound_run_is_never_bound_again() -> None:
    plan, state = decide([group("g"), group("h")], waiting("a"))
    plan, _ = decide([group("g", placed("a")), group("h")], state=state)
    assert plan == PlacementPlan()


def test_a_binding_that_was_not_applied_is_made_again() -> None:
    groups = [group("g")]
    first, state = decide(groups, waiting("a", WHOLE))
    again, _ = decide(groups, waiting("a", WHOLE), state=state)
    assert first.bind == again.bind


def test_drift_is_seen_and_the_phase_is_fitted_anew() -> None:
    """b's busy half has moved onto a's."""
    groups = [group("g", placed("a"), placed("b", phase_s=50.0))]
    plan, state = decide(groups)
    assert not plan.shift
    late = Demand(period_s=100.0, bins=(0.0, 0.0, 1.0, 1.0))
    drifted = [group("g", placed("a"), placed("b", replace(late, period_s=101.0), phase_s=50.0))]
    plan, _ = decide(drifted, state=state)
    (shift,) = plan.shift
    assert (shift.run_id, shift.group_id) in (("a", "g"), ("b", "g"))


def test_a_drift_that_leaves_the_period_alone_is_seen_before_somebody_joins() -> None:
    _, state = decide([group("g", placed("a", Demand(period_s=100.0, bins=(0.0,) * 4)))])
    plan, _ = decide(
        [group("g", placed("a", Demand(period_s=100.0, bins=(1.0,) * 4)))],
        waiting("b"),
        state=state,
    )
    assert why(plan) == {"b": waits.SLACK}


def test_quotas_of_tenants() -> None:
    groups = [group("f"), group("g"), group("h")]
    runs = [waiting("a"), waiting("b"), waiting("c", tenant_id=TenantId("u"))]
    plan, _ = decide(groups, *runs, quotas=(Quota(tenant_id=TenantId("t"), max_runs=1),))
    assert set(where(plan)) == {"a", "c"}
    assert why(plan) == {"b": waits.QUOTA}
    assert "1 of at most 1" in plan.waits[0].detail
    share = (Quota(tenant_id=TenantId("t"), max_share=0.1),)
    assert why(decide(groups, *runs, quotas=share)[0]) == {"b": waits.QUOTA}
    assert set(where(decide(groups, *runs[:2], quotas=share)[0])) == {"a", "b"}


def test_tenants_with_less_go_first_and_priorities_before_them() -> None:
    _, state = decide([group("f"), group("g")], waiting("a", WHOLE))
    groups = [group("f", placed("a", WHOLE)), group("g")]
    other = waiting("c", WHOLE, tenant_id=TenantId("u"))
    assert where(decide(groups, waiting("b", WHOLE), other, state=state)[0]) == {"c": "g"}
    urgent = waiting("b", WHOLE, priority=1)
    assert where(decide(groups, urgent, other, state=state)[0]) == {"b": "g"}


@pytest.mark.parametrize(
    ("demand", "hint"),
    [
        (Demand(period_s=0.0, bins=(1.0,)), "must be positive"),
        (Demand(period_s=float("nan"), bins=(1.0,)), "must be positive"),
        (Demand(period_s=1.0, bins=()), "profile it anew"),
        (Demand(period_s=1.0, bins=(1.5,)), "profile it anew"),
    ],
)
def test_malformed_traces_are_refused(demand: Demand, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        decide([group("g")], waiting("a", demand))
