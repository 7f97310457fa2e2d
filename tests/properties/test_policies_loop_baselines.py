"""What defines each baseline, in a closed loop of random runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_loop import Job, simulate

from plait.policies.registry import make

BUDGET = 30
SERIAL = ["sequential", "single-collocated", "single-disaggregated"]

jobs_at_once = st.lists(
    st.builds(
        Job,
        rollout_s=st.floats(1, 60),
        train_s=st.floats(0.1, 20),
        idle_s=st.sampled_from([0.0, 3.0]),
        kv_blocks=st.integers(1, 45),
        weight=st.sampled_from([1.0, 4.0]),
        priority=st.sampled_from([0, 5]),
        n_steps=st.integers(1, 5),
        evaluates=st.booleans(),
    ),
    min_size=2,
    max_size=6,
)


@pytest.mark.parametrize("name", SERIAL)
@given(jobs=jobs_at_once)
def test_serial_baselines_finish_each_job_before_the_next(name: str, jobs: list[Job]) -> None:
    record = simulate(make(name), jobs, budget=BUDGET, horizon_s=1e6)
    assert record.most_mid_step == 1
    changes = [a for a, b in zip(record.grants, [*record.grants[1:], ""], strict=True) if a != b]
    assert changes == [f"r{i:02d}" for i in range(len(jobs))]


@given(jobs=jobs_at_once)
def test_a_paused_job_lets_the_next_one_on_and_never_joins_it(jobs: list[Job]) -> None:
    pause = {0: (2.0, 500.0)}
    record = simulate(make("sequential"), jobs, budget=BUDGET, horizon_s=1e6, pause=pause)
    assert record.most_mid_step == 1
    assert all(record.steps[f"r{i:02d}"] == job.n_steps for i, job in enumerate(jobs))


@given(jobs=jobs_at_once)
def test_rounds_train_only_when_all_have_rolled_out(jobs: list[Job]) -> None:
    record = simulate(make("multi-lora-sync"), jobs, budget=BUDGET, horizon_s=1e6)
    assert record.trains_during_rollout == 0
    assert record.most_active == len(jobs)


@given(jobs=jobs_at_once)
def test_rounds_admit_together(jobs: list[Job]) -> None:
    """Between two rollouts of one run every other live run rolls out exactly once."""
    same = [Job(rollout_s=j.rollout_s, train_s=j.train_s, n_steps=3) for j in jobs]
    record = simulate(make("multi-lora-sync"), same, budget=BUDGET, horizon_s=1e6)
    n = len(jobs)
    assert [sorted(record.grants[i * n : (i + 1) * n]) for i in range(3)] == [
        [f"r{i:02d}" for i in range(n)]
    ] * 3


@given(jobs=jobs_at_once)
def test_a_paused_run_holds_no_barrier(jobs: list[Job]) -> None:
    record = simulate(
        make("multi-lora-sync"), jobs, budget=BUDGET, horizon_s=1e4, pause={0: (0.0, 1e9)}
    )
    assert all(record.steps[f"r{i:02d}"] == job.n_steps for i, job in enumerate(jobs) if i)


@given(jobs=jobs_at_once)
def test_without_admission_nobody_waits_to_roll_out(jobs: list[Job]) -> None:
    record = simulate(make("no-admission"), jobs, budget=1, horizon_s=2000)
    assert "kv_budget" not in record.reasons
    assert record.most_active == len(jobs)


@given(jobs=jobs_at_once)
def test_without_multi_lora_one_rolls_out_while_others_train(jobs: list[Job]) -> None:
    record = simulate(make("no-multi-lora"), jobs, budget=BUDGET, horizon_s=2000)
    assert record.most_active == 1


def test_asynchrony_pays_where_lengths_differ() -> None:
    """MARLaaS Table 1: a barrier costs every run the slowest one's rollout."""
    jobs = [Job(rollout_s=s, train_s=1.0, kv_blocks=5) for s in (2, 4, 8, 40)]
    steps = {
        name: sum(simulate(make(name), jobs, budget=BUDGET, horizon_s=800.0).steps.values())
        for name in ("marlaas", "multi-lora-sync")
    }
    assert steps["marlaas"] > 3 * steps["multi-lora-sync"] > 0


def test_sharing_pays_where_rollouts_are_long() -> None:
    jobs = [Job(rollout_s=20.0, train_s=1.0, kv_blocks=7, n_steps=20) for _ in range(4)]
    ended_s = {
        name: simulate(make(name), jobs, budget=BUDGET, horizon_s=1e5).ended_s
        for name in ("marlaas", "no-multi-lora", "sequential")
    }
    assert ended_s["marlaas"] < 0.35 * ended_s["sequential"]
    assert ended_s["marlaas"] < 0.35 * ended_s["no-multi-lora"] < 0.35 * ended_s["sequential"]
