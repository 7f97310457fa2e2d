"""Turns: weighted shares of tenants and runs, order within a run, nobody starved; O(log n)."""

import itertools
import math
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plait.policies.fairness import AGE_GRANTS
from plait.policies.turns import Turns

COSTS = st.integers(1, 50)
TURNS = 100
"""Counted: enough that a sweep, if there is one, shows."""


def fill(turns: Turns, tenant: str, run: str, costs: list[int], **share: float) -> list[str]:
    names = [f"{tenant}/{run}/{i}" for i in range(len(costs))]
    for name, cost in zip(names, costs, strict=True):
        turns.park(name, tenant=tenant, run=run, cost=cost, **share)  # type: ignore[arg-type]
    return names


def drain(turns: Turns, n: int | None = None) -> list[tuple[str, str, str]]:
    taken = iter(lambda: turns.take(), None)
    return [(t.item, t.tenant, t.run) for t in itertools.islice(taken, n)]


def test_who_asks_most_often_gets_no_more_than_who_asks_once() -> None:
    turns = Turns()
    fill(turns, "greedy", "r", [10] * 1000)
    fill(turns, "modest", "r", [10] * 10)
    first = Counter(tenant for _, tenant, _ in drain(turns, 20))
    assert first == {"greedy": 10, "modest": 10}


def test_shares_go_by_weight_between_tenants_and_between_their_runs() -> None:
    turns = Turns()
    fill(turns, "a", "x", [10] * 300, weight=3, run_weight=1)
    fill(turns, "a", "y", [10] * 300, weight=3, run_weight=2)
    fill(turns, "b", "z", [10] * 300, weight=1)
    got = Counter((tenant, run) for _, tenant, run in drain(turns, 240))
    assert abs(got["b", "z"] - 60) <= 1
    assert abs(got["a", "x"] - 60) <= 2
    assert abs(got["a", "y"] - 120) <= 2


def test_many_runs_of_a_tenant_get_no_more_than_one_of_another() -> None:
    turns = Turns()
    for i in range(50):
        fill(turns, "many", f"r{i}", [5] * 10)
    fill(turns, "one", "r", [5] * 100)
    got = Counter(tenant for _, tenant, _ in drain(turns, 100))
    assert abs(got["one"] - 50) <= 1


def test_who_comes_back_has_no_claim_on_the_past() -> None:
    turns = Turns()
    fill(turns, "late", "r", [1])
    drain(turns)
    fill(turns, "busy", "r", [10] * 100)
    drain(turns, 50)
    fill(turns, "late", "s", [10] * 100)
    got = Counter(tenant for _, tenant, _ in drain(turns, 20))
    assert abs(got["late"] - 10) <= 1


def test_a_true_cost_is_charged_when_it_is_known() -> None:
    turns = Turns()
    fill(turns, "short", "r", [100] * 50)
    fill(turns, "long", "r", [100] * 50)
    got: Counter[str] = Counter()
    while got["short"] < 40:
        turn = turns.take()
        assert turn is not None
        got[turn.tenant] += 1
        if turn.tenant == "short":  # stops after a tenth
            turns.correct("short", "r", -90)
    assert got["long"] <= 5


def test_higher_priority_goes_first_and_the_lower_is_not_starved() -> None:
    turns = Turns()
    fill(turns, "low", "r", [1] * 10, priority=0)
    fill(turns, "high", "r", [1] * 100, priority=5)
    order = [tenant for _, tenant, _ in drain(turns, 2 * (AGE_GRANTS + 1))]
    assert order[:AGE_GRANTS] == ["high"] * AGE_GRANTS
    assert Counter(order) == {"high": 2 * AGE_GRANTS, "low": 2}


def test_a_held_run_lets_the_others_go_on_and_a_held_tenant_too() -> None:
    turns = Turns()
    fill(turns, "a", "x", [1, 1])
    fill(turns, "a", "y", [1])
    fill(turns, "b", "z", [1])
    turns.hold("a", "x")
    turns.hold("a", "x")
    turns.hold("b")
    standing = turns.standing("b/z/0")
    assert standing is not None
    assert standing.held
    assert [item for item, _, _ in drain(turns)] == ["a/y/0"]
    turns.release("b")
    turns.release("a", "x")
    assert [item for item, _, _ in drain(turns)] == ["b/z/0"]
    turns.release("a", "x")
    assert [item for item, _, _ in drain(turns)] == ["a/x/0", "a/x/1"]


def test_a_parked_sample_knows_where_it_stands() -> None:
    turns = Turns()
    names = fill(turns, "a", "x", [1] * 5)
    fill(turns, "b", "y", [1] * 3)
    standing = turns.standing(names[4])
    assert standing is not None
    assert (standing.ahead, standing.parked) == (4, 8)
    assert turns.drop(names[0])
    assert not turns.drop(names[0])
    standing = turns.standing(names[4])
    assert standing is not None
    assert (standing.ahead, standing.parked) == (3, 7)


@given(
    st.lists(st.lists(COSTS, min_size=1, max_size=40), min_size=2, max_size=5),
    st.lists(st.integers(1, 8), min_size=5, max_size=5),
    st.booleans(),
)
@settings(deadline=None)
def test_service_per_weight_differs_by_one_sample_of_each_at_most(
    costs: list[list[int]], weights: list[int], as_runs: bool
) -> None:
    """Goyal, Vin and Cheng's theorem 1, for whoever waits all the time; tenants and runs alike."""
    turns = Turns()
    for i, mine in enumerate(costs):
        if as_runs:
            fill(turns, "t", f"{i}", mine, run_weight=weights[i])
        else:
            fill(turns, f"{i}", "r", mine, weight=weights[i])
    left = [len(mine) for mine in costs]
    served = [0.0] * len(costs)
    while len(turns):
        turn = turns.take()
        assert turn is not None
        i = int(turn.run if as_runs else turn.tenant)
        served[i] += costs[i][-left[i]] / weights[i]
        left[i] -= 1
        waiting = [j for j, n in enumerate(left) if n]
        for j, k in itertools.combinations(waiting, 2):
            slack = max(costs[j]) / weights[j] + max(costs[k]) / weights[k]
            assert abs(served[j] - served[k]) <= slack + 1e-9


class Lane(RuleBasedStateMachine):
    """Whatever is parked, dropped, held and taken: each sample once, in its run's order."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()
        self.queues: dict[tuple[str, str], list[str]] = {}
        self.held_runs: Counter[tuple[str, str]] = Counter()
        self.held: set[str] = set()
        self.n = 0

    @rule(
        tenant=st.sampled_from("abc"),
        run=st.sampled_from("xyz"),
        cost=COSTS,
        weight=st.integers(0, 3),
        priority=st.integers(0, 2),
    )
    def park(self, tenant: str, run: str, cost: int, weight: int, priority: int) -> None:
        self.n += 1
        self.turns.park(
            f"{self.n}", tenant=tenant, run=run, cost=cost, weight=weight, priority=priority
        )
        self.queues.setdefault((tenant, run), []).append(f"{self.n}")

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from([i for q in self.queues.values() for i in q]))
        assert self.turns.drop(item)
        for queue in self.queues.values():
            if item in queue:
                queue.remove(item)

    @rule(tenant=st.sampled_from("abc"), run=st.sampled_from("xyz"))
    def hold_run(self, tenant: str, run: str) -> None:
        if any(t == tenant for t, _ in self.queues):  # who never came is not known
            self.turns.hold(tenant, run)
            self.held_runs[tenant, run] += 1

    @rule(tenant=st.sampled_from("abc"), run=st.sampled_from("xyz"))
    def release_run(self, tenant: str, run: str) -> None:
        if self.held_runs[tenant, run]:
            self.turns.release(tenant, run)
            self.held_runs[tenant, run] -= 1

    @rule(tenant=st.sampled_from("abc"))
    def hold(self, tenant: str) -> None:
        if any(t == tenant for t, _ in self.queues):
            self.turns.hold(tenant)
            self.held.add(tenant)

    @rule(tenant=st.sampled_from("abc"))
    def release(self, tenant: str) -> None:
        self.turns.release(tenant)
        self.held.discard(tenant)

    @rule(
        tenant=st.sampled_from("abc"), run=st.sampled_from("xyz"), difference=st.integers(-50, 50)
    )
    def correct(self, tenant: str, run: str, difference: int) -> None:
        self.turns.correct(tenant, run, difference)

    @rule()
    def take(self) -> None:
        runnable = [
            key
            for key, queue in self.queues.items()
            if queue and not self.held_runs[key] and key[0] not in self.held
        ]
        turn = self.turns.take()
        if turn is None:
            assert not runnable
            return
        assert (turn.tenant, turn.run) in runnable
        assert turn.item == self.queues[turn.tenant, turn.run].pop(0)

    @invariant()
    def as_many_wait_as_were_parked(self) -> None:
        assert len(self.turns) == sum(map(len, self.queues.values()))
        for queue in self.queues.values():
            for i, item in enumerate(queue):
                standing = self.turns.standing(item)
                assert standing is not None
                assert standing.ahead >= i


TestLane = Lane.TestCase
TestLane.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def steps_of(n: int) -> float:
    """Comparisons of heap entries that a thousand turns among ``n`` flows make."""
    import heapq

    turns = Turns()
    for i in range(n):
        fill(turns, f"t{i % 100}", f"r{i}", [1 + i % 7])
    count = 0
    push, pop = heapq.heappush, heapq.heappop

    class Counted(tuple):  # type: ignore[type-arg]
        def __lt__(self, other: object) -> bool:
            nonlocal count
            count += 1
            return tuple.__lt__(self, other)  # type: ignore[operator]

    for level in (*turns._levels.values(), *(t.level for t in turns._tenants.values())):
        level._heap = [Counted(e) for e in level._heap]
    heapq.heappush = lambda heap, e: push(heap, Counted(e))
    try:
        drain(turns, 1000)
    finally:
        heapq.heappush, heapq.heappop = push, pop
    return count / 1000


def test_a_turn_costs_the_logarithm_of_what_waits() -> None:
    assert steps_of(20_000) < steps_of(2_000) + 15


def instructions_of(n: int, n_flows: int) -> float:
    """Instructions of a turn, the next arrival, and a look at who waits, with ``n`` parked."""
    turns = Turns()

    def park(i: int) -> None:
        flow = i % n_flows
        turns.park(f"{i}", tenant=f"t{flow % 40}", run=f"r{flow}", cost=1 + i % 7)

    for i in range(n):
        park(i)
    count = 0

    def counted(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        for i in range(n, n + TURNS):
            turn = turns.take()
            assert turn is not None
            turns.correct(turn.tenant, turn.run, 3)
            park(i)
            turns.standing(f"{i}")
    finally:
        sys.settrace(before)
    assert len(turns) == n
    return count / TURNS


@pytest.mark.parametrize("flows", [lambda n: 20, lambda n: n], ids=["few runs", "a run each"])
def test_a_turn_takes_no_more_steps_than_the_logarithm_of_what_waits(flows: Any) -> None:
    """Steps of the interpreter, so the same on any machine; the heap's own are counted above."""
    few, many = (instructions_of(n, flows(n)) for n in (100, 10_000))
    assert few > 0
    assert many <= few * math.log(10_000) / math.log(100)
