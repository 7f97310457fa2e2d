"""What holds for the policies in a closed loop, whatever the runs do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_loop import Job, Record, simulate

from plait.policies.company import MOST_ROWS
from plait.policies.fairness import AGE_GRANTS, LAG_STEPS
from plait.policies.registry import known, make

BUDGET = 30
CANONICAL = [name for name in known() if name != "plait"]

jobs_of_any_kind = st.lists(
    st.builds(
        Job,
        arrives_s=st.floats(0, 100),
        rollout_s=st.floats(1, 60),
        train_s=st.floats(0.1, 20),
        rows=st.sampled_from([0, 100, 200, 1000]),
        idle_s=st.sampled_from([0.0, 0.0, 3.0]),
        kv_blocks=st.integers(1, 45),
        weight=st.sampled_from([0.5, 1.0, 1.0, 4.0]),
        priority=st.sampled_from([0, 0, 0, 1, 5]),
        n_steps=st.integers(1, 6),
        evaluates=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def longest(record: Record) -> float:
    return max((max(waits) for waits in record.waits_s.values()), default=0.0)


@pytest.mark.parametrize("name", CANONICAL)
@given(jobs=jobs_of_any_kind)
def test_every_job_is_carried_to_its_end(name: str, jobs: list[Job]) -> None:
    """No policy deadlocks, whatever arrives. Every decision is checked in ``policy_loop``."""
    alone_s = sum(j.n_steps * (2 * j.rollout_s + j.train_s + j.idle_s) for j in jobs)
    record = simulate(make(name), jobs, budget=BUDGET, horizon_s=10 * alone_s + 1000)
    assert all(record.steps[f"r{i:02d}"] == job.n_steps for i, job in enumerate(jobs))


@given(jobs=jobs_of_any_kind)
def test_admission_stays_in_the_budget_but_for_a_run_alone(jobs: list[Job]) -> None:
    record = simulate(make("marlaas"), jobs, budget=BUDGET, horizon_s=2000)
    assert record.over_budget == 0


@given(jobs=jobs_of_any_kind)
def test_no_sharing_is_slower_than_one_after_another(jobs: list[Job]) -> None:
    """Work conserving: with a free pool and one that waits, somebody is served."""
    shared = simulate(make("marlaas"), jobs, budget=BUDGET, horizon_s=1e6)
    serial_s = sum(j.n_steps * (2 * j.rollout_s + j.train_s + j.idle_s) for j in jobs)
    assert shared.ended_s <= max(j.arrives_s for j in jobs) + serial_s + 1e-6


@given(jobs=jobs_of_any_kind, max_active=st.integers(1, 3))
def test_max_active_is_kept(jobs: list[Job], max_active: int) -> None:
    record = simulate(make("marlaas", max_active=max_active), jobs, budget=BUDGET, horizon_s=2000)
    assert record.most_active <= max_active


@settings(max_examples=8)
@given(
    n_small=st.integers(2, 6),
    small_blocks=st.integers(1, 5),
    big_blocks=st.integers(26, 60),
    small_s=st.floats(2, 20),
    idle_s=st.sampled_from([0.0, 1.0]),
)
def test_a_large_run_is_not_starved_by_small_ones(
    n_small: int, small_blocks: int, big_blocks: int, small_s: float, idle_s: float
) -> None:
    """The small ones always fit beside each other, never beside it, and never end together."""
    small = [
        Job(kv_blocks=small_blocks, rollout_s=small_s + 0.1 * i, train_s=0.1, idle_s=idle_s)
        for i in range(n_small)
    ]
    big = Job(kv_blocks=big_blocks, rollout_s=5.0, train_s=0.1, arrives_s=1.0)
    cycle_s = small_s + 0.2 * n_small + 1.0 + idle_s
    # What it owes for its own last step, then AGE_GRANTS overtakings, then they end.
    bound_s = (5.0 / small_s + AGE_GRANTS + 3) * cycle_s
    record = simulate(make("marlaas"), [*small, big], budget=BUDGET, horizon_s=4 * bound_s)
    waits = record.waits_s[f"r{n_small:02d}"]
    assert len(waits) > 4
    assert max(waits) <= bound_s


@settings(max_examples=8)
@given(n_high=st.integers(1, 4), n_low=st.integers(1, 6), rollout_s=st.floats(1, 10))
def test_a_low_priority_waits_but_not_for_ever(n_high: int, n_low: int, rollout_s: float) -> None:
    """The pool takes one at a time and the high ones alone would fill it."""
    high = [Job(kv_blocks=30, rollout_s=rollout_s, train_s=0.01, priority=9)] * (n_high + 1)
    low = [Job(kv_blocks=30, rollout_s=rollout_s, train_s=0.01)] * n_low
    n_grants = AGE_GRANTS + (AGE_GRANTS + 1) * (n_low + 1)
    horizon_s = 2 * n_grants * rollout_s
    record = simulate(make("marlaas"), [*high, *low], budget=BUDGET, horizon_s=horizon_s)
    lows = [record.waits_s[f"r{i:02d}"] for i in range(n_high + 1, n_high + 1 + n_low)]
    assert max(max(waits) for waits in lows) <= (n_grants + 1) * (rollout_s + 0.01)
    n_low_grants = sum(int(run_id[1:]) > n_high for run_id in record.grants)
    assert n_low_grants <= len(record.grants) / (AGE_GRANTS + 1) + 1


@settings(max_examples=3)
@given(
    weights=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=2, max_size=4),
    data=st.data(),
)
def test_weighted_shares_converge_under_overload(weights: list[float], data) -> None:
    """Three runs per weight class compete for a pool that takes one; steps differ in length."""
    jobs = [
        Job(
            kv_blocks=30,
            rollout_s=data.draw(st.floats(2, 12)),
            train_s=0.01,
            weight=weight,
        )
        for weight in weights
        for _ in range(3)
    ]
    assert served_shares(jobs) == pytest.approx(due_shares(jobs), rel=0.1)


def test_a_short_step_among_long_ones_gets_all_that_it_can() -> None:
    """Its weight is worth more than every second turn, which is the most there is: while it is
    updated the pool is given to somebody else."""
    lengths = [9.3, 6.8, 8.3, 2.0, 8.2, 10.3]
    weights = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    jobs = [
        Job(kv_blocks=30, rollout_s=rollout_s, train_s=0.01, weight=weight)
        for rollout_s, weight in zip(lengths, weights, strict=True)
    ]
    due = due_shares(jobs)
    assert due[3] < 0.9 * 2 / 9
    assert served_shares(jobs) == pytest.approx(due, rel=0.05)


def served_shares(jobs: list[Job]) -> list[float]:
    """What each run got of a pool that takes one at a time."""
    record = simulate(make("marlaas"), jobs, budget=BUDGET, horizon_s=3_000)
    total = sum(record.served.values())
    return [record.served[f"r{i:02d}"] / total for i in range(len(jobs))]


def due_shares(jobs: list[Job]) -> list[float]:
    """By weight; a run that cannot use its share because no run has two turns running gets every
    second turn, and the others divide what it leaves."""
    due = [0.0] * len(jobs)
    free, left = list(range(len(jobs))), 1.0
    while True:
        weight = sum(jobs[i].weight for i in free)
        fair = {i: left * jobs[i].weight / weight for i in free}
        capped = [i for i in free if _every_second_turn(jobs, i) < fair[i]]
        for i in capped:
            due[i] = _every_second_turn(jobs, i)
            left -= due[i]
            free.remove(i)
        if not capped:
            return [fair.get(i, due[i]) for i in range(len(jobs))]


def _every_second_turn(jobs: list[Job], i: int) -> float:
    """The share of a run whose turns alternate with the others', taken by weight."""
    others = [job for k, job in enumerate(jobs) if k != i]
    n_turns = sum(job.weight / job.rollout_s for job in others)
    other_s = sum(job.weight for job in others) / n_turns
    return jobs[i].rollout_s / (jobs[i].rollout_s + other_s)


@settings(max_examples=2)
@given(weights=st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=3, max_size=4))
def test_the_trainer_is_shared_by_weight_too(weights: list[float]) -> None:
    """Three runs of each weight; rollouts cost nothing, so the trainer is what is short."""
    jobs = [
        Job(kv_blocks=1, rollout_s=0.001, train_s=3.0 + i % 4, weight=weight)
        for weight in weights
        for i in range(3)
    ]
    check_shares(simulate(make("marlaas"), jobs, budget=BUDGET, horizon_s=3_000), jobs)


@settings(max_examples=2)
@given(weights=st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=3, max_size=4))
def test_gradients_that_go_together_keep_the_shares(weights: list[float]) -> None:
    """The same, with gradients of which two share a pass. (If nearly all did, they would take turns
    as two crowds, and nobody can have more than every second turn.)"""
    jobs = [
        Job(kv_blocks=1, rollout_s=0.001, train_s=3.0 + i % 4, weight=weight, rows=MOST_ROWS // 2)
        for weight in weights
        for i in range(3)
    ]
    record = simulate(make("marlaas"), jobs, budget=BUDGET, horizon_s=3_000)
    assert record.went_along > 100
    check_shares(record, jobs)


def check_shares(record: Record, jobs: list[Job]) -> None:
    """Each got of the trainer what its weight is worth."""
    total = sum(record.served.values())
    for i, job in enumerate(jobs):
        fair = job.weight / sum(j.weight for j in jobs)
        assert record.served[f"r{i:02d}"] / total == pytest.approx(fair, rel=0.1)


def test_a_newcomer_neither_shuts_out_the_old_nor_waits_for_its_past() -> None:
    """After 1000 s alone with two others, an old run keeps its share beside a new one."""
    old = [Job(kv_blocks=30, rollout_s=5.0, train_s=0.01)] * 2
    new = Job(kv_blocks=30, rollout_s=5.0, train_s=0.01, arrives_s=1000.0)
    record = simulate(make("marlaas"), [*old, new], budget=BUDGET, horizon_s=1600)
    before = simulate(make("marlaas"), old, budget=BUDGET, horizon_s=1000)
    for run_id in ("r00", "r01"):
        assert record.served[run_id] - before.served[run_id] == pytest.approx(200, abs=20)
    assert record.served["r02"] == pytest.approx(200, abs=20)
    assert max(record.waits_s["r02"]) <= 20


def test_who_asked_for_little_gets_no_hoard_of_credit() -> None:
    """Two runs that idle for 1,000 s and then work are not served alone to make up for it."""
    lazy = [Job(kv_blocks=30, rollout_s=4.0, train_s=0.01, idle_s=100.0, idle_steps=10)] * 2
    busy = [Job(kv_blocks=30, rollout_s=4.0, train_s=0.01)] * 2
    record = simulate(make("marlaas"), [*lazy, *busy], budget=BUDGET, horizon_s=1_600)
    credit_s = 2 * LAG_STEPS * 4.0
    assert max(max(record.waits_s[run_id]) for run_id in ("r02", "r03")) <= credit_s + 3 * 4.1
