from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import RunId
from plait.core.plan import Keep
from plait.core.view import ToolWaitView
from plait.policies.registry import make
from plait.policies.residency import KvResidency, LeaveAll

FIRMNESS = {Keep.DROP: 0, Keep.LEAVE: 1, Keep.KEEP: 2}
VIEW = ToolWaitView(
    run_id=RunId("a"),
    tokens=400,
    expected_wait_s=1.0,
    recompute_s=0.5,
    idle_blocks=100,
    evicted_per_s=20.0,
)
"""Unheld blocks last five seconds."""


def decided(**changes: float) -> Keep:
    plan, state = KvResidency().decide(replace(VIEW, **changes), {}, 0.0)
    assert plan.reason
    assert state == {}
    return plan.keep


@pytest.mark.parametrize(
    ("changes", "keep"),
    [
        ({}, Keep.KEEP),
        ({"expected_wait_s": 5.0}, Keep.KEEP),
        ({"expected_wait_s": 8.0}, Keep.LEAVE),
        ({"expected_wait_s": 11.0}, Keep.DROP),
        ({"evicted_per_s": 0.0, "expected_wait_s": 99.0}, Keep.LEAVE),
        ({"recompute_s": 0.001}, Keep.DROP),
        ({"idle_blocks": 0}, Keep.DROP),
    ],
)
def test_who_is_back_soon_is_kept_and_who_is_not_makes_room(changes: dict, keep: Keep) -> None:
    assert decided(**changes) is keep


positive = st.floats(1e-3, 1e3)


@given(a=positive, b=positive, evicted=positive, idle=st.integers(0, 10_000), cost=positive)
def test_a_longer_wait_or_a_fuller_cache_never_keeps_more_firmly(
    a: float, b: float, evicted: float, idle: int, cost: float
) -> None:
    short, long = sorted((a, b))
    common = {"idle_blocks": idle, "recompute_s": cost}
    by_wait = [decided(expected_wait_s=w, evicted_per_s=evicted, **common) for w in (short, long)]
    by_pressure = [
        decided(expected_wait_s=evicted, evicted_per_s=rate, **common) for rate in (short, long)
    ]
    for first, second in (by_wait, by_pressure):
        assert FIRMNESS[first] >= FIRMNESS[second]


def test_it_can_be_switched_off_and_is_for_the_baselines() -> None:
    assert make("plait").residency == KvResidency()
    assert make("plait", residency="off").residency == LeaveAll()
    assert make("sequential").residency == LeaveAll()
    assert LeaveAll().decide(VIEW, {}, 0.0)[0].keep is Keep.LEAVE
