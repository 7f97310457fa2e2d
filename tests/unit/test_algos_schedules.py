"""Learning rates by step."""

import pytest

from plait.algos.schedules import learning_rate_at


def rates(n: int, **keys) -> list[float]:
    return [learning_rate_at(step, peak=1.0, **keys) for step in range(1, n + 1)]


def test_warm_up_rises_to_the_peak_and_stays() -> None:
    assert rates(6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_linear_falls_and_would_reach_zero_after_the_last_step() -> None:
    assert rates(5, schedule="linear", total_steps=4) == pytest.approx([1, 0.75, 0.5, 0.25, 0])


def test_cosine_is_half_way_in_the_middle() -> None:
    out = rates(5, schedule="cosine", total_steps=4)
    assert out[2] == pytest.approx(0.5)
    assert out[0] == 1.0
    assert out == sorted(out, reverse=True)
    assert out[3] > 0


def test_decay_starts_where_the_warm_up_ends() -> None:
    out = rates(6, schedule="linear", warmup_steps=2, total_steps=5)
    assert out == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        learning_rate_at(0, peak=1.0)


def test_decay_needs_an_end() -> None:
    with pytest.raises(ValueError, match="total_steps"):
        learning_rate_at(1, peak=1.0, schedule="cosine")
