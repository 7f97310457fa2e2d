import pytest

from plait.core.runs import Stage
from plait.runtime.pace import Pace


def step(pace: Pace, now: float, *, queue_s: float, roll_s: float, train_s: float) -> float:
    """One step that waits for admission, rolls out and trains; the time of its commit."""
    pace.staged(Stage.WAIT_ROLLOUT, now)
    pace.staged(Stage.ROLLOUT, now + queue_s)
    pace.staged(Stage.WAIT_TRAIN, now + queue_s + roll_s)
    pace.staged(Stage.TRAIN, now + queue_s + roll_s)
    end = now + queue_s + roll_s + train_s
    pace.stepped(end)
    return end


def test_a_steps_time_counts_its_waits_and_the_time_alone_does_not() -> None:
    pace = Pace()
    now = step(pace, 100.0, queue_s=5.0, roll_s=10.0, train_s=2.0)
    assert (pace.tpts_s, pace.alone_s) == (17.0, 12.0)
    now = step(pace, now, queue_s=0.0, roll_s=7.0, train_s=2.0)
    assert (pace.tpts_s, pace.alone_s) == (13.0, 9.0)
    step(pace, now, queue_s=30.0, roll_s=20.0, train_s=2.0)
    assert pace.alone_s == 9.0, "neighbours can only lengthen a step"
    assert pace.tpts_s == pytest.approx((13.0 + 52.0) / 2)


def test_nothing_is_known_before_the_first_step_or_without_time() -> None:
    pace = Pace()
    pace.stepped(3.0)
    assert (pace.tpts_s, pace.alone_s) == (0.0, 0.0)
    pace.stepped(3.0)
    assert pace.tpts_s == 0.0


def test_a_step_that_its_owner_held_back_does_not_count() -> None:
    pace = Pace()
    now = step(pace, 0.0, queue_s=0.0, roll_s=8.0, train_s=2.0)
    pace.staged(Stage.WAIT_ROLLOUT, now)
    pace.spoiled()
    pace.staged(Stage.ROLLOUT, now + 1000.0)
    pace.stepped(now + 1010.0)
    assert (pace.tpts_s, pace.alone_s) == (10.0, 10.0)
