"""Pulse: silence is looks in a row without a sign, whatever time passes between them."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from plait.cluster.pulse import LOOKS, Pulse


@pytest.fixture
def ends() -> Iterator[tuple[Pulse, socket.socket]]:
    watched, beating = socket.socketpair()
    pulse = Pulse(watched.detach())
    with beating:
        yield pulse, beating
    pulse.close()


def test_one_sign_between_looks_is_enough(ends: tuple[Pulse, socket.socket]) -> None:
    pulse, beating = ends
    for _ in range(3):
        assert not any(pulse.is_silent() for _ in range(LOOKS - 1))
        beating.send(b".")
        assert not pulse.is_silent()
    assert [pulse.is_silent() for _ in range(LOOKS)] == [False] * (LOOKS - 1) + [True]


def test_many_old_signs_are_one_and_the_worker_waits_for_no_looks(
    ends: tuple[Pulse, socket.socket],
) -> None:
    pulse, beating = ends
    beating.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(2**20):
            beating.send(b".")
    assert [pulse.is_silent() for _ in range(LOOKS + 1)] == [False] * LOOKS + [True]


def test_after_the_end_nobody_is_looked_at(ends: tuple[Pulse, socket.socket]) -> None:
    pulse, _ = ends
    pulse.close()
    pulse.close()
    assert not pulse.is_silent()
