"""Balancing: the division with the smallest maximum, in whole samples."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import RequestError
from plait.core.ids import RunId
from plait.core.merging import BalanceView
from plait.policies.balancing import EqualFinish


def view(total, slowdowns, *, fixed_s=0.0, per_sample_s=1.0, most=None):
    return BalanceView(
        run_id=RunId("b"),
        total=total,
        fixed_s=fixed_s,
        per_sample_s=per_sample_s,
        slowdowns=tuple(slowdowns),
        most=tuple(most or [total] * len(slowdowns)),
    )


def divide(v):
    return EqualFinish().decide(v, {}, 0.0)[0]


def test_the_paper_s_equation_by_hand():
    # T(bs_1) = 2 · T(bs_0) with Σ = 12: 8 where nobody is, 4 beside the tail.
    plan = divide(view(12, [2.0, 1.0]))
    assert plan.samples == (4, 8)
    assert plan.predicted_s == 8.0


def test_fixed_time_counts_on_every_worker():
    # 2·(1 + a) = 1 + b with a + b = 11: a = 10/3; of (3, 8) and (4, 7) the first ends at 9.
    plan = divide(view(11, [2.0, 1.0], fixed_s=1.0))
    assert plan.samples == (3, 8)
    assert plan.predicted_s == 9.0


def test_nobody_slowed_down_is_an_equal_division():
    assert divide(view(8, [1.0] * 4)).samples == (2, 2, 2, 2)


def test_room_is_kept_to():
    assert divide(view(12, [2.0, 1.0], most=[12, 5])).samples == (7, 5)


def test_work_without_a_slope_is_given_out_all_the_same():
    assert sum(divide(view(5, [1.0, 3.0], fixed_s=2.0, per_sample_s=0.0)).samples) == 5


def test_no_room_for_all_is_refused():
    with pytest.raises(RequestError, match="12 samples, but room for 10"):
        divide(view(12, [1.0, 1.0], most=[5, 5]))


def test_one_that_is_slow_gets_its_part_where_another_has_no_room():
    """Whether the slow one takes part depends on what the full one leaves."""
    v = view(2, [1.0, 2.0, 1.0], fixed_s=1.5, per_sample_s=2.0, most=[2, 2, 0])
    assert divide(v).samples == (2, 0, 0)
    v = view(4, [1.0, 2.0, 1.0], fixed_s=1.5, per_sample_s=1.0, most=[4, 4, 0])
    assert divide(v).samples == (3, 1, 0)


@given(
    total=st.integers(0, 9),
    slowdowns=st.lists(st.floats(1.0, 4.0), min_size=1, max_size=3),
    fixed_s=st.floats(0.0, 3.0),
    per_sample_s=st.floats(0.01, 2.0),
    data=st.data(),
)
def test_no_other_division_ends_earlier(total, slowdowns, fixed_s, per_sample_s, data):
    most = data.draw(st.lists(st.integers(0, 9), min_size=len(slowdowns), max_size=len(slowdowns)))
    v = view(total, slowdowns, fixed_s=fixed_s, per_sample_s=per_sample_s, most=most)
    if sum(most) < total:
        with pytest.raises(RequestError):
            divide(v)
        return
    plan = divide(v)
    assert sum(plan.samples) == total
    assert all(0 <= n <= m for n, m in zip(plan.samples, most, strict=True))

    def latest(samples):
        pairs = zip(slowdowns, samples, strict=True)
        return max(s * (fixed_s + per_sample_s * n) for s, n in pairs)

    best = min(
        latest(other) for other in product(*(range(m + 1) for m in most)) if sum(other) == total
    )
    assert latest(plan.samples) <= best + 1e-9
    assert plan.predicted_s == pytest.approx(latest(plan.samples))
