"""Limits: buckets, holds, and that one tenant's are nobody else's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import Limited
from plait.core.ids import TenantId
from plait.service.limits import Bucket, Limits, TenantLimits
from plait.service.places import LEFT_S

ANN, BEN = TenantId("ann"), TenantId("ben")


class Clock:
    t = 100.0

    def __call__(self) -> float:
        return self.t


def limits(clock: Clock, **ann: float | None) -> Limits:
    made = Limits(clock)
    made.put(ANN, TenantLimits.model_validate(ann))
    made.put(BEN, TenantLimits())
    return made


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5)), min_size=1, max_size=200),
    st.floats(0.5, 20),
)
def test_a_bucket_never_gives_more_than_came_in(asks: list[tuple[float, int]], rate: float) -> None:
    now, given_out, burst = 0.0, 0, 10.0
    bucket = Bucket(rate, burst, now)
    for wait, n in asks:
        now += wait
        wait_s = bucket.take(n, now)
        assert wait_s >= 0
        if wait_s == 0:
            given_out += n
        else:
            assert bucket.take(n, now + wait_s + 1e-6) == 0.0, "what it says is long enough"
            now += wait_s + 1e-6
            given_out += n
    assert given_out <= burst + rate * now + 1e-3


def test_over_the_rate_a_request_is_told_when_to_come_again() -> None:
    clock = Clock()
    made = limits(clock, requests_per_s=2)
    for _ in range(10):
        with made.request(ANN):
            pass
    with pytest.raises(Limited) as caught, made.request(ANN):
        pass
    assert 0 < caught.value.retry_after_s <= 0.5
    with made.request(BEN):
        pass
    clock.t += caught.value.retry_after_s
    with made.request(ANN):
        pass


def test_what_is_open_is_counted_however_it_ends() -> None:
    made = limits(Clock(), open_requests=1, requests_per_s=None)
    for error in (ValueError, None):
        try:
            with made.request(ANN):
                with pytest.raises(Limited), made.request(ANN):
                    pass
                if error:
                    raise error
        except ValueError:
            pass
    assert made.used(ANN)["open_requests"] == 0


def test_bodies_that_are_held_are_bounded_together() -> None:
    made = limits(Clock(), body_bytes=100)
    with made.body(ANN) as more:
        more(90)
        with made.body(ANN) as other, pytest.raises(Limited):
            other(20)
        with made.body(BEN) as theirs:
            theirs(1000)
    assert made.used(ANN)["body_bytes"] == 0
    with made.body(ANN) as more:
        more(1000)  # alone it is taken: another bound says how large one body may be


def test_tokens_are_paid_afterwards_and_waited_off() -> None:
    clock = Clock()
    made = limits(clock, tokens_per_min=600)
    assert made.hold(ANN) is None
    made.spend(ANN, tokens=1200)
    hold = made.hold(ANN)
    assert hold is not None
    assert hold.retry_after_s == pytest.approx(60)
    assert "600 tokens a minute" in hold.reason
    assert made.hold(BEN) is None
    clock.t += hold.retry_after_s
    assert made.hold(ANN) is None


def test_a_changed_limit_refills_no_bucket() -> None:
    clock = Clock()
    made = limits(clock, requests_per_s=2, tokens_per_min=600)
    for _ in range(10):
        with made.request(ANN):
            pass
    made.spend(ANN, tokens=1200)
    made.put(ANN, TenantLimits(requests_per_s=2, tokens_per_min=600, runs=3))
    with pytest.raises(Limited), made.request(ANN):
        pass
    hold = made.hold(ANN)
    assert hold is not None
    assert hold.retry_after_s == pytest.approx(60)
    made.put(ANN, TenantLimits(requests_per_s=20, tokens_per_min=1200))
    with pytest.raises(Limited) as caught, made.request(ANN):
        pass
    assert caught.value.retry_after_s == pytest.approx(1 / 20), "an empty bucket stays empty"
    hold = made.hold(ANN)
    assert hold is not None
    assert hold.retry_after_s == pytest.approx(30), "the same debt, waited off at the new rate"


@pytest.mark.parametrize("rate", [1.0, 50.0])
def test_at_another_rate_a_bucket_is_as_full_as_it_was(rate: float) -> None:
    bucket = Bucket(10.0, 100.0, 0.0)
    bucket.spend(80.0, 0.0)
    changed = bucket.at_rate(rate, 10 * rate, 3.0)  # 30 have come in: half full
    assert changed.take(5 * rate, 3.0) == 0.0
    assert changed.take(rate, 3.0) == pytest.approx(1.0)


def test_a_budget_of_device_seconds_holds_until_it_is_raised() -> None:
    made = limits(Clock(), device_s=10)
    made.spend(ANN, device_s=9.0)
    assert made.hold(ANN) is None
    made.spend(ANN, device_s=1.0)
    assert made.hold(ANN) is not None
    made.put(ANN, TenantLimits(device_s=20))
    assert made.hold(ANN) is None, "new limits, and what was used stays"
    assert made.used(ANN)["device_s"] == 10.0


def test_places_go_to_who_waits_longest_and_each_is_told_its_position() -> None:
    clock = Clock()
    made = limits(clock, runs=1)
    assert made.take_run(ANN, "a") is None

    def positions(*whos: str) -> list[str]:
        holds = [made.take_run(ANN, who) for who in whos]
        return ["in" if hold is None else hold.reason.rpartition("; ")[2] for hold in holds]

    assert positions(*"bcd") == ["position 1", "position 2", "position 3"]
    assert made.take_run(ANN, "b").reason.startswith("1 of 1 runs are alive: one of them must end")
    made.give_run(ANN)
    assert positions(*"dcb") == ["position 3", "position 2", "in"]
    clock.t += 2 * LEFT_S  # and of those, only one asks again
    made.give_run(ANN)
    assert positions("d") == ["in"]
    made.put(ANN, TenantLimits(runs=3))
    assert positions(*"ef") == ["in", "in"], "what is taken stays so under new limits"
    assert positions("g") == ["position 1"]
    assert made.take_run(BEN, "z") is None, "another tenant's are its own"


def test_runs_and_storage() -> None:
    made = limits(Clock(), runs=2, storage_bytes=10)
    assert [made.take_run(ANN, who) is None for who in "abc"] == [True, True, False]
    made.give_run(ANN)
    assert made.take_run(ANN, "c") is None
    made.check_storage(ANN, 4, 6)
    with pytest.raises(Limited):
        made.check_storage(ANN, 5, 6)
    made.check_storage(BEN, 10**15, 10**15)
