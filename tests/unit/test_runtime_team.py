"""Team: threads are taken anew between layers, and accounted for."""

from pathlib import Path

from plait.runtime.shares import Shares
from plait.runtime.team import Team


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_worker_gives_cores_back_in_the_middle_of_a_step(tmp_path: Path) -> None:
    path = tmp_path / "shares"
    Shares.create(path, 2)
    neighbour, clock, told = Shares(path, slot=1, cores=2), Clock(), []
    team = Team(Shares(path, slot=0, cores=2), now=clock)
    team.serves(told.append)
    team.begin()
    clock.now_s = 1.0
    neighbour.claim()
    team.claim()  # between two layers
    clock.now_s = 3.0
    assert neighbour.claim() == 1
    neighbour.release()
    team.claim()
    clock.now_s = 4.0
    ended_s, threads = team.end()
    assert told == [2, 1, 2]
    assert ended_s == 4.0
    assert threads == (2 * 1 + 1 * 2 + 2 * 1) / 4


def test_threads_are_set_only_when_they_change(tmp_path: Path) -> None:
    path = tmp_path / "shares"
    Shares.create(path, 1)
    told: list[int] = []
    team = Team(Shares(path, slot=0, cores=2))
    team.claim()  # engines are still being built
    team.serves(told.append)
    team.begin()
    team.claim()
    team.claim()
    assert told == [2]
