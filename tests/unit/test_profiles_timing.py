import pytest

from plait.profiles import timing
from plait.profiles.timing import TimingObservation, TimingProfile


def seen(kind: str, tokens: int, seconds: float) -> TimingObservation:
    return TimingObservation(kind=kind, tokens=tokens, seconds=seconds)


def test_the_prior_stands_in_before_history() -> None:
    profile = TimingProfile(prior_s_per_token=0.002, prior_s_per_call=0.3)
    assert timing.expected_s(profile, "forward_backward", 1000) == pytest.approx(2.0)
    assert timing.expected_s(profile, "save") == pytest.approx(0.3)


def test_one_real_batch_outweighs_the_prior() -> None:
    """The prior may be wrong by a factor of a hundred, as on another device."""
    profile = TimingProfile(prior_s_per_token=0.2)
    profile = timing.update(profile, seen("forward_backward", 20_000, 40.0))
    assert timing.expected_s(profile, "forward_backward", 500) == pytest.approx(1.0, rel=0.4)
    for _ in range(10):
        profile = timing.update(profile, seen("forward_backward", 20_000, 40.0))
    assert timing.expected_s(profile, "forward_backward", 500) == pytest.approx(1.0, rel=0.1)


def test_kinds_are_kept_apart() -> None:
    profile = timing.update(TimingProfile(), seen("rollout", 20_000, 400.0))
    assert timing.expected_s(profile, "forward", 100) == timing.expected_s(
        TimingProfile(), "forward", 100
    )
    assert timing.expected_s(profile, "rollout", 100) == pytest.approx(2.0, rel=0.01)


def test_work_without_tokens_is_measured_per_call() -> None:
    profile = TimingProfile()
    for _ in range(30):
        profile = timing.update(profile, seen("optim_step", 0, 0.5))
    assert timing.expected_s(profile, "optim_step") == pytest.approx(0.5, rel=0.2)


def test_the_past_fades() -> None:
    profile = timing.update(TimingProfile(), seen("rollout", 1000, 100.0))
    for _ in range(30):
        profile = timing.update(profile, seen("rollout", 1000, 1.0))
    assert timing.expected_s(profile, "rollout", 1000) == pytest.approx(1.0, rel=0.05)


def test_nonsense_is_ignored() -> None:
    for seconds in (-1.0, float("nan"), float("inf")):
        assert timing.update(TimingProfile(), seen("x", 1, seconds)) == TimingProfile()
