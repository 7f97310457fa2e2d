import numpy as np
import pytest

from plait.core.placement import Demand
from plait.policies import rings
from plait.policies.rings import BINS


def demand(*bins: float, period_s: float = 64.0) -> Demand:
    return Demand(period_s=period_s, bins=bins)


def test_the_horizon_holds_four_of_the_longest_steps_and_seldom_changes() -> None:
    assert rings.horizon(64.0) == 256.0
    assert rings.horizon(65.0) == rings.horizon(120.0) == 512.0
    assert rings.horizon(0.0) == 1.0


def test_a_step_is_laid_on_the_ring_as_often_as_it_fits() -> None:
    ring = rings.project(demand(1.0, 0.0), 0.0, 256.0)
    assert ring[:32].tolist() == [1.0] * 32
    assert ring[32:64].tolist() == [0.0] * 32
    assert ring[64:96].tolist() == [1.0] * 32
    assert ring.mean() == pytest.approx(0.5)


def test_periods_that_do_not_divide_the_horizon_are_scaled_to_whole_steps() -> None:
    trace = demand(1.0, 0.0, 0.0, 0.0, period_s=57.0)
    assert rings.steps(trace, 256.0) == 4
    assert rings.project(trace, 0.0, 256.0)[:17].tolist() == [1.0] * 16 + [0.0]
    assert rings.project(trace, 0.0, 256.0).mean() == pytest.approx(0.25)


def test_a_phase_in_seconds_is_a_shift_in_bins() -> None:
    trace = demand(1.0, 0.25, 0.0, 0.0)
    shifts, phases_s = rings.phases(trace, 256.0)
    assert shifts.tolist() == list(range(0, 64, 2))
    moved = rings.shifted(rings.project(trace, 0.0, 256.0), shifts)
    for shift, phase_s, row in zip(shifts, phases_s, moved, strict=True):
        assert phase_s == float(shift)
        assert row == pytest.approx(rings.project(trace, float(phase_s), 256.0))


def test_the_overlap_is_the_formula_by_hand() -> None:
    load = np.zeros(BINS)
    load[:4] = 0.75
    trace = np.zeros(BINS)
    trace[:2] = 0.5
    shifts = [0, 3, 4, BINS - 1]
    assert rings.overlaps(load, rings.shifted(trace, shifts)).tolist() == [0.5, 0.25, 0.0, 0.25]


def test_a_delay_is_what_is_too_much_where_the_run_works() -> None:
    trace = demand(1.0, 0.0)
    ring = rings.project(trace, 0.0, 256.0)
    over = np.zeros(BINS)
    over[:8], over[40] = 0.5, 9.0  # the second while it idles
    assert rings.delay_s(over, ring, trace, 256.0) == pytest.approx(4 * 0.5 * 8 / 4 / 4)


def test_a_run_without_a_demand_counts_as_all() -> None:
    assert rings.project(None, 3.0, 256.0).tolist() == [1.0] * BINS
    assert rings.phases(None, 256.0)[1].tolist() == [0.0]


def test_jitter_widens_what_is_busy() -> None:
    trace = np.zeros(BINS)
    trace[0] = 1.0
    assert np.flatnonzero(rings.widened(trace, 2)).tolist() == [0, 1, 2, BINS - 2, BINS - 1]
