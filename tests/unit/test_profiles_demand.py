"""Demand: traces for placement, under drift and jitter."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.profiles.demand import (
    BINS,
    Busy,
    DemandProfile,
    demand,
    jitter,
    resample,
    stale,
    trace,
    update,
)


def steps(periods, share=0.25):
    """Steps one after the other, busy in the first ``share`` of each."""
    profile, now = DemandProfile(), 0.0
    for period in periods:
        profile = update(profile, now, now + period, [Busy(t0_s=now, t1_s=now + share * period)])
        now += period
    return profile


def test_a_trace_by_hand():
    busy = [Busy(t0_s=0, t1_s=3), Busy(t0_s=5, t1_s=10, share=0.5), Busy(t0_s=9, t1_s=99)]
    assert trace(busy, 0.0, 10.0, 5) == pytest.approx((1.0, 0.5, 0.25, 0.5, 1.0))


def test_a_run_is_cold_before_its_first_step():
    assert demand(DemandProfile()) is None
    assert demand(update(DemandProfile(), 1.0, 1.0, [])) is None


def test_a_regular_run():
    found = demand(steps([8.0] * 5))
    assert found.period_s == pytest.approx(8.0)
    assert found.bins == pytest.approx((1.0,) * 16 + (0.0,) * 48)
    assert jitter(steps([8.0] * 5)) == pytest.approx(0.0, abs=1e-6)


def test_the_period_follows_drift():
    found = demand(steps([8.0 * 1.03**i for i in range(20)]))
    assert found.period_s == pytest.approx(8.0 * 1.03**19, rel=0.08)


def test_jitter_neither_shifts_nor_restarts():
    draw = random.Random(0)
    profile = steps([8.0 * draw.uniform(0.85, 1.15) for _ in range(40)])
    assert profile.n_steps == 40
    assert demand(profile).period_s == pytest.approx(8.0, rel=0.1)
    assert 0.03 < jitter(profile) < 0.15


def test_one_odd_step_is_set_aside_and_two_are_the_new_length():
    usual = demand(steps([8.0] * 6))
    assert demand(steps([8.0] * 6 + [40.0])) == usual
    assert demand(steps([8.0] * 6 + [40.0, 8.0])).period_s == pytest.approx(8.0)
    assert demand(steps([8.0] * 6 + [40.0, 8.0, 40.0])).period_s == pytest.approx(8.0)
    assert demand(steps([8.0] * 6 + [40.0, 40.0])).period_s == pytest.approx(40.0)


def test_when_to_fit_again():
    used = demand(steps([8.0] * 5))
    assert not stale(used, used)
    assert not stale(used, demand(steps([8.4] * 5)))
    assert stale(used, demand(steps([9.0] * 5)))
    assert stale(used, demand(steps([8.0] * 5, share=0.4)))


shares = st.lists(st.floats(0, 1), min_size=1, max_size=100)


@given(shares, st.integers(1, 100))
def test_resampling_keeps_the_mean(bins, n):
    found = resample(bins, n)
    assert all(0 <= x <= 1 for x in found)
    assert sum(found) / n == pytest.approx(sum(bins) / len(bins), abs=1e-9)


intervals = st.builds(
    lambda a, b, s: Busy(t0_s=a, t1_s=a + b, share=s),
    st.floats(-5, 20),
    st.floats(0, 20),
    st.floats(0, 1),
)


@given(st.lists(st.tuples(st.floats(0.1, 50), st.lists(intervals, max_size=5)), max_size=8))
def test_demand_is_always_a_demand(found):
    profile, now = DemandProfile(), 0.0
    for period, busy in found:
        profile = update(profile, now, now + period, busy)
        now += period
    told = demand(profile)
    assert (told is None) == (not found)
    if told is not None:
        assert len(told.bins) == BINS
        assert all(0 <= x <= 1 for x in told.bins)
        assert told.period_s > 0
        assert jitter(profile) >= 0
