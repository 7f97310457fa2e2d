"""Premises: measures by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import ConfigError
from plait.profiles.premises import consistency, correlation, opposition

FALLING = [(10.0, 8.0), (10.0, 4.0), (20.0, 1.0)]


def test_equal_steps():
    found = consistency([FALLING] * 4)
    assert (found.n_pairs, found.area, found.correlation) == (3, 0.0, pytest.approx(1.0))


def test_a_longer_tail_by_hand():
    longer = [(10.0, 8.0), (10.0, 4.0), (40.0, 1.0)]
    found = consistency([FALLING, longer])
    # 20 forward steps of one row between them; 140 and 160 rows·steps under them.
    assert found.area == pytest.approx(20 / 150, rel=0.02)
    assert 0.9 < found.correlation < 1.0


def test_steps_that_have_nothing_in_common():
    found = consistency([[(10.0, 4.0), (10.0, 0.0)], [(10.0, 0.0), (10.0, 4.0)]])
    assert found.area == pytest.approx(2.0)
    assert found.correlation == pytest.approx(-1.0)


def test_one_step_tells_nothing():
    assert consistency([FALLING]) is None
    assert consistency([FALLING, [], [(5.0, 0.0)]]) is None


def test_halves_that_fit_into_each_other():
    half = [1.0] * 50 + [0.0] * 50
    found = opposition(half, half)
    assert found.random == pytest.approx(0.25)
    assert (found.best, found.worst, found.bound, found.avoided) == (0.0, 0.5, 0.0, 1.0)
    assert found.best_correlation == pytest.approx(-1.0)


def test_gaps_that_do_not_fit():
    often = [1.0, 0.0] * 50  # gaps too short for the other's work
    rare = [1.0] * 50 + [0.0] * 50
    found = opposition(often, rare)
    assert found.best == found.random == found.worst == 0.25
    assert found.avoided == 0.0


def test_busy_for_more_than_all_of_the_time():
    most = [1.0] * 75 + [0.0] * 25
    found = opposition(most, most)
    assert found.bound == 0.5
    assert found.best == 0.5
    assert found.avoided == pytest.approx(1.0)


def test_unequal_traces():
    with pytest.raises(ConfigError, match="same number"):
        opposition([1.0], [1.0, 0.0])


traces = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n)] * 2)
)


@given(traces)
def test_a_random_phase_is_the_product_and_the_best_is_between(pair):
    found = opposition(*pair)
    assert found.random == pytest.approx(found.busy[0] * found.busy[1])
    assert found.bound - 1e-9 <= found.best <= found.random + 1e-9
    assert found.random <= found.worst + 1e-9
    assert -1e-9 <= found.avoided <= 1 + 1e-9


heights = st.lists(st.floats(0, 100), min_size=2, max_size=20)


@given(heights)
def test_correlation_with_itself(x):
    assert correlation(x, x) == pytest.approx(1.0)


@given(st.lists(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0, 64)), max_size=8), max_size=6))
def test_measures_stay_in_their_ranges(curves):
    found = consistency(curves)
    if found is not None:
        assert 0 <= found.area <= found.worst_area <= 2 + 1e-9
        assert -1 <= found.least_correlation <= found.correlation <= 1
