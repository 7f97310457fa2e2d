"""Advantages against hand-worked and independent formulas."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.algos.advantages import GRPO_EPS, dr_grpo, grpo, reinforce_pp, rloo
from plait.core.errors import RewardError

ALL = (grpo, dr_grpo, rloo, reinforce_pp)
rewards = st.one_of(st.none(), st.floats(-10, 10, width=32))
groups_PG = st.lists(st.lists(rewards, min_size=1, max_size=6), min_size=1, max_size=5)


def test_grpo_divides_by_the_samples_deviation() -> None:
    group = [1.0, 0.0, 0.0, 0.5]
    std = statistics.stdev(group)
    expected = [(r - 0.375) / (std + GRPO_EPS) for r in group]
    assert grpo([group])[0] == pytest.approx(expected)


def test_dr_grpo_only_subtracts_the_mean() -> None:
    assert dr_grpo([[1.0, 0.0, 0.5]])[0] == pytest.approx([0.5, -0.5, 0.0])


def test_rloo_leaves_the_sample_itself_out_of_its_baseline() -> None:
    assert rloo([[1.0, 0.0, 0.5]])[0] == pytest.approx([0.75, -0.75, 0.0])


def test_reinforce_pp_compares_with_the_whole_batch() -> None:
    out = reinforce_pp([[1.0, 1.0], [0.0, 0.0]])
    scale = 0.5 + GRPO_EPS
    assert out[0] == pytest.approx([0.5 / scale] * 2)
    assert out[1] == pytest.approx([-0.5 / scale] * 2)


def test_groups_do_not_see_each_other() -> None:
    for formula in (grpo, dr_grpo, rloo):
        assert formula([[1.0, 0.0], [5.0, 0.0]])[0] == formula([[1.0, 0.0]])[0]


@pytest.mark.parametrize("formula", ALL)
def test_a_failed_sample_changes_nothing_for_the_others(formula) -> None:
    whole = formula([[1.0, 0.0, 0.25], [0.0, 1.0]])
    holed = formula([[1.0, None, 0.0, 0.25], [0.0, 1.0, None]])
    assert holed[0][1] is None
    assert holed[1][2] is None
    assert [a for a in holed[0] if a is not None] == list(whole[0])
    assert [a for a in holed[1] if a is not None] == list(whole[1])


@pytest.mark.parametrize("formula", ALL)
def test_equal_rewards_give_exactly_zero(formula) -> None:
    # 0.1 * 3 / 3 is not 0.1 in floats: a mean alone would leave noise that looks like signal
    assert formula([[0.1, 0.1, 0.1]]) == ((0.0, 0.0, 0.0),)


@pytest.mark.parametrize("formula", ALL)
def test_one_scored_sample_has_nothing_to_be_compared_with(formula) -> None:
    assert formula([[None, 3.0]]) == ((None, 0.0),)


@pytest.mark.parametrize("formula", ALL)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused(formula, bad: float) -> None:
    with pytest.raises(RewardError, match="not finite"):
        formula([[1.0, bad]])


@pytest.mark.parametrize("formula", ALL)
@given(groups=groups_PG)
def test_shape_and_missing_rewards_are_kept(formula, groups) -> None:
    out = formula(groups)
    assert [len(g) for g in out] == [len(g) for g in groups]
    for group, advantages in zip(groups, out, strict=True):
        assert [r is None for r in group] == [a is None for a in advantages]


@given(group=st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=8))
def test_group_advantages_sum_to_zero(group) -> None:
    for formula in (grpo, dr_grpo, rloo):
        assert sum(formula([group])[0]) == pytest.approx(0, abs=1e-6)
