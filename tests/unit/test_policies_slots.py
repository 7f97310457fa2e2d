"""plait.policies.slots: the least recently used gives way, is closed, or is dropped."""

import pytest

from plait.core.ids import RunId
from plait.policies.routing import Policy
from plait.policies.slots import KEPT_AHEAD, MIN_SERVED, Room, SlotView, closing, room, surplus

A, B, C, D = ((RunId(name), 1) for name in "abcd")


def slot(policy: Policy, n_used: int = 0, n_served: int = MIN_SERVED, **more: bool) -> SlotView:
    return SlotView(policy=policy, n_used=n_used, n_served=n_served, **more)


def test_nothing_gives_way_while_there_is_room() -> None:
    assert room([slot(A), slot(B)], 3) == Room(there=True)
    assert room([], 0) == Room(there=False)


def test_the_least_recently_used_that_is_idle_gives_way() -> None:
    assert room([slot(A, 1), slot(B), slot(C)], 3) == Room(there=True, gives_way=B)
    assert room([slot(A, 1), slot(B, 2)], 2) == Room(there=False)


@pytest.mark.parametrize(
    ("kept", "dropped"), [(0, (A, C, D)), (1, (A, C)), (2, (A,)), (3, ()), (9, ())]
)
def test_the_latest_idle_ones_are_kept(kept: int, dropped: tuple[Policy, ...]) -> None:
    assert surplus([slot(A), slot(B, 1), slot(C), slot(D)], kept) == dropped


def test_as_many_are_closed_as_wait_for_room() -> None:
    slots = [slot(A, 1), slot(B, 1), slot(C, 1)]
    assert [closing(slots, n) for n in range(5)] == [(), (A,), (A, B), (A, B, C), (A, B, C)]


def test_who_is_closed_already_counts() -> None:
    slots = [slot(A, 1), slot(B, 1, closed=True), slot(C, 1)]
    assert [closing(slots, n) for n in range(4)] == [(), (), (A,), (A, C)]


def test_nothing_is_closed_before_its_load_was_worth_it() -> None:
    slots = [slot(A, 1, MIN_SERVED - 1), slot(B, 1, MIN_SERVED)]
    assert closing(slots, 2) == (B,)


def test_what_is_loaded_ahead_has_a_bound_of_its_own() -> None:
    ahead = [slot((RunId(f"{i}"), 1), n_served=0) for i in range(KEPT_AHEAD + 1)]
    assert surplus([*ahead[1:], slot(A), slot(B)], 1) == (A,)
    assert surplus([*ahead, slot(A)], 1) == (ahead[0].policy,)
