"""plait.rewards.outcome: numbers, "not applicable" and errors are three things."""

import numpy as np
import pytest

from plait.core.errors import RewardError
from plait.rewards.outcome import MAX_ERROR_CHARS, RewardOutcome, combine, failed, read_outcomes


def test_sum_over_what_applies() -> None:
    one, none = RewardOutcome(value=1.0), RewardOutcome()
    assert combine([(2.0, one), (0.5, none), (-1.0, one)]) == RewardOutcome(value=1.0)
    assert combine([(1.0, none), (1.0, none)]) == none
    assert combine([]) == none


def test_an_error_makes_the_sum_unknown() -> None:
    total = combine([(1.0, RewardOutcome(value=1.0)), (1.0, RewardOutcome(error="hung"))])
    assert total == RewardOutcome(error="hung")


def test_a_sum_that_overflows_is_an_error() -> None:
    big = RewardOutcome(value=1e308)
    assert "not finite" in str(combine([(10.0, big)]).error)


@pytest.mark.parametrize("bad", [{"value": float("nan")}, {"value": 1.0, "error": "x"}])
def test_an_outcome_cannot_be_nonsense(bad: dict[str, object]) -> None:
    with pytest.raises(RewardError):
        RewardOutcome(**bad)  # type: ignore[arg-type]


def test_numpy_and_booleans_are_numbers() -> None:
    raw = [np.float32(0.5), True, np.int64(2), None]
    assert [o.value for o in read_outcomes(raw, 4, "f")] == [0.5, 1.0, 2.0, None]
    assert [o.value for o in read_outcomes(np.array([1.0, 2.0]), 2, "f")] == [1.0, 2.0]


def test_long_errors_are_cut() -> None:
    (outcome,) = failed("x" * 10_000, 1)
    assert len(str(outcome.error)) == MAX_ERROR_CHARS
