"""Pulse: silence is looks in a row without a sign, whatever time passes between them; and a worker
that is stuck says so itself."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from plait.cluster.doing import Doing
from plait.cluster.pulse import ALIVE, LOOKS, STUCK, Pulse

SILENT = "it gave no sign of life for 60 s"


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
        assert not any(pulse.look() for _ in range(LOOKS - 1))
        beating.send(ALIVE)
        assert not pulse.look()
    assert [pulse.look() for _ in range(LOOKS)] == [""] * (LOOKS - 1) + [SILENT]


def test_many_old_signs_are_one_and_the_worker_waits_for_no_looks(
    ends: tuple[Pulse, socket.socket],
) -> None:
    pulse, beating = ends
    beating.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(2**20):
            beating.send(ALIVE)
    assert [pulse.look() for _ in range(LOOKS + 1)] == [""] * LOOKS + [SILENT]


def test_after_the_end_nobody_is_looked_at(ends: tuple[Pulse, socket.socket]) -> None:
    pulse, _ = ends
    pulse.close()
    pulse.close()
    assert not pulse.look()


def test_the_last_sign_says_whether_it_is_stuck(ends: tuple[Pulse, socket.socket]) -> None:
    pulse, beating = ends
    beating.send(STUCK + ALIVE)
    assert not pulse.look(), "it was, and got on"
    beating.send(ALIVE + STUCK)
    assert "--step-limit" in pulse.look()


def test_it_is_stuck_in_one_step_and_not_in_many(capfd: pytest.CaptureFixture[str]) -> None:
    doing = Doing()
    doing.limit_s = 3.0
    assert not any(doing.is_stuck(1.0) for _ in range(9)), "nothing is being done"
    for _ in range(4):
        with doing.one("a short step"):
            assert not any(doing.is_stuck(1.0) for _ in range(3))
    with doing.one("a long step"):
        for _ in range(4):  # its layers
            assert not any(doing.is_stuck(1.0) for _ in range(3))
            doing.gets_on()
        found = [doing.is_stuck(1.0) for _ in range(6)]
    assert found == [False] * 3 + [True] * 3
    assert not doing.is_stuck(1.0), "it has ended"
    log = capfd.readouterr().err
    assert log.count("in a long step for 3 s\n") == 1
    assert "test_it_is_stuck_in_one_step_and_not_in_many" in log, "where it was"
