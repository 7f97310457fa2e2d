"""Confidence intervals against published values and by coverage."""

import math
import random

import pytest

from plait.obs.intervals import Interval, difference_ci95, mean_ci95


def test_wilson_for_hits_and_misses() -> None:
    # Newcombe 1998, table I: 81 of 263
    found = mean_ci95([1.0] * 81 + [0.0] * 182)
    assert found is not None
    assert (round(found.low, 4), round(found.high, 4)) == (0.2553, 0.3662)


def test_wilson_stays_honest_at_the_ends() -> None:
    none, every = mean_ci95([0.0] * 10), mean_ci95([1.0] * 10)
    assert none is not None
    assert every is not None
    assert (none.low, none.high) == pytest.approx((0.0, 0.278), abs=5e-4)
    assert (every.low, every.high) == pytest.approx((0.722, 1.0), abs=5e-4)


def test_normal_for_graded_rewards() -> None:
    found = mean_ci95([0.2, 0.4, 0.6])
    assert found is not None
    assert found.mean == pytest.approx(0.4)
    assert found.high - found.mean == pytest.approx(1.96 * 0.2 / math.sqrt(3), rel=1e-3)


def test_few_values() -> None:
    assert mean_ci95([]) is None
    one = mean_ci95([0.3])
    assert one is not None
    assert (one.low, one.high) == (-math.inf, math.inf)


def test_difference_of_proportions() -> None:
    # Newcombe 1998 (method 10): 56/70 - 48/80, interval 0.0524 to 0.3339
    before = mean_ci95([1.0] * 48 + [0.0] * 32)
    after = mean_ci95([1.0] * 56 + [0.0] * 14)
    assert before is not None
    assert after is not None
    gain = difference_ci95(before, after)
    assert (round(gain.mean, 4), round(gain.low, 4), round(gain.high, 4)) == (0.2, 0.0524, 0.3339)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = random.Random(0)
    hits = 0
    for _ in range(1000):
        found = mean_ci95([float(rng.random() < 0.3) for _ in range(50)])
        assert isinstance(found, Interval)
        hits += found.low <= 0.3 <= found.high
    assert 0.92 <= hits / 1000 <= 0.98
