"""Guests: what they were served with is told once, and forgotten with them."""

from plait.runtime.guests import Guests, guest_id

ONE, TWO = guest_id("one"), guest_id("two")


def test_what_a_guest_has_had_is_told_once() -> None:
    guests = Guests()
    guests.charge(ONE, 0.5, 10)
    guests.charge(ONE, 0.25, 5)
    served = guests.settle(ONE)
    assert (served.device_s, served.tokens) == (0.75, 15)
    assert guests.settle(ONE).tokens == 0


def test_a_guest_with_nothing_loaded_leaves_nothing() -> None:
    guests = Guests()
    guests.paths = {(ONE, 1): "a", (TWO, 1): "b"}
    for guest in (ONE, TWO):
        guests.charge(guest, 0.5, 10)  # by a report that came after its last sample
    del guests.paths[ONE, 1]
    guests.forget(ONE)
    guests.forget(TWO)
    assert guests.settle(ONE).tokens == 0
    assert guests.settle(TWO).tokens == 10, "another version of it is loaded"
