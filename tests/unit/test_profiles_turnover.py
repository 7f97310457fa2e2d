import pytest

from plait.profiles.turnover import HALF_LIFE_S, CacheProfile, evicted_per_s, update


def test_a_steady_rate_is_found() -> None:
    profile = CacheProfile()
    for i in range(1, 2001):
        profile = update(profile, now=i * 0.05, tokens=10, busy_s=0.04, n_evicted=2, idle_blocks=i)
    assert evicted_per_s(profile, 100.0) == pytest.approx(40.0, rel=0.01)
    assert profile.s_per_token == pytest.approx(0.004)
    assert profile.idle_blocks == 2000


def test_pressure_fades() -> None:
    profile = update(CacheProfile(), now=3.0, tokens=1, busy_s=0.1, n_evicted=50, idle_blocks=4)
    at_once = evicted_per_s(profile, 3.0)
    assert evicted_per_s(profile, 3.0 + HALF_LIFE_S) == pytest.approx(at_once / 2)
    assert evicted_per_s(profile, 2.0) == at_once
    assert evicted_per_s(CacheProfile(), 9.0) == CacheProfile().s_per_token == 0.0
