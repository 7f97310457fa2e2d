"""Home: runs are spread evenly over the training workers, and stay until it pays to go."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import RunId, WorkerId
from plait.core.view import HomeView
from plait.policies.home import FewestRuns
from plait.policies.registry import known, make

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def chosen(home: WorkerId | None, others: dict[WorkerId, int]) -> WorkerId:
    view = HomeView(run_id=RunId("x"), home=home, others=tuple(others.items()))
    plan, state = FewestRuns().decide(view, {}, 0.0)
    assert plan.reason
    assert state == {}
    return plan.worker_id


@pytest.mark.parametrize(
    ("home", "others", "worker"),
    [
        (None, {A: 1, B: 0}, B),
        (None, {B: 1, A: 1}, A),
        (A, {A: 0, B: 0}, A),
        (A, {A: 1, B: 1}, A),
        (A, {A: 1, B: 0}, B),
        (A, {A: 2, B: 2, C: 0}, C),
    ],
)
def test_a_run_goes_where_the_fewest_are_and_stays_there(
    home: WorkerId | None, others: dict[WorkerId, int], worker: WorkerId
) -> None:
    assert chosen(home, others) == worker


@given(st.integers(1, 5), st.lists(st.integers(0, 9), max_size=40), st.integers(0, 99))
def test_runs_that_come_and_go_are_evened_out_and_then_stay(
    n_workers: int, ends: list[int], seed: int
) -> None:
    """Runs arrive one by one, some end, and the rest come by in any order, update after update."""
    workers = [WorkerId(str(i)) for i in range(n_workers)]
    homes: dict[int, WorkerId] = {}

    def others(run: int) -> dict[WorkerId, int]:
        return {w: sum(h == w for r, h in homes.items() if r != run) for w in workers}

    for run in range(len(ends)):
        homes[run] = chosen(None, others(run))
        assert max(others(-1).values()) - min(others(-1).values()) <= 1
    for run, end in enumerate(ends):
        if end < 5:
            del homes[run]
    for _ in range(len(homes) + 1):
        before = dict(homes)
        for run in random.Random(seed).sample(sorted(homes), len(homes)):
            homes[run] = chosen(homes[run], others(run))
        if homes == before:
            break
    else:
        pytest.fail("they never come to rest")
    assert max(others(-1).values()) - min(others(-1).values()) <= 1


def test_every_policy_has_it() -> None:
    assert {make(name).home for name in known()} == {FewestRuns()}
