"""What holds for response ratios, seats and quotas in a closed loop, whatever the runs do."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_loop import Job, simulate

from plait.core.ids import TenantId
from plait.core.view import DispatchView
from plait.policies.hrrn import HrrnDispatch
from plait.policies.quotas import Quota, QuotaAdmission
from plait.policies.registry import make

BUDGET = 30
WAYS = {
    "adaptive": {"admission": "adaptive"},
    "adaptive without a target": {"admission": "adaptive", "stretch": 0},
    "hrrn": {"dispatch": "hrrn"},
    "hrrn without switch": {"dispatch": "hrrn-no-switch"},
    "sjf": {"dispatch": "sjf"},
    "round robin": {"dispatch": "round-robin"},
}

jobs_of_any_kind = st.lists(
    st.builds(
        Job,
        arrives_s=st.floats(0, 100),
        rollout_s=st.floats(1, 60),
        train_s=st.floats(0.1, 20),
        rows=st.sampled_from([0, 100, 200, 1000]),
        idle_s=st.sampled_from([0.0, 0.0, 3.0]),
        kv_blocks=st.integers(1, 45),
        weight=st.sampled_from([0.0, 0.5, 1.0, 4.0]),
        priority=st.sampled_from([0, 0, 0, 1, 5]),
        n_steps=st.integers(1, 6),
        evaluates=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def alone_s(jobs: list[Job]) -> float:
    return sum(j.n_steps * (2 * j.rollout_s + j.train_s + j.idle_s) for j in jobs)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=15)
@given(jobs=jobs_of_any_kind)
def test_every_job_is_carried_to_its_end(way: str, jobs: list[Job]) -> None:
    """No deadlock; every decision is checked in ``policy_loop``: pure, one reason per wait."""
    sharing = make("plait", **WAYS[way])
    record = simulate(sharing, jobs, budget=BUDGET, horizon_s=10 * alone_s(jobs) + 1000)
    assert all(record.steps[f"r{i:02d}"] == job.n_steps for i, job in enumerate(jobs))
    assert record.over_budget == 0


@settings(max_examples=15)
@given(jobs=jobs_of_any_kind)
def test_quotas_are_kept_and_hold_up_nobody_for_ever(jobs: list[Job]) -> None:
    inner = make("plait")
    quota = Quota(tenant_id=TenantId("t"), max_runs=2)
    sharing = replace(inner, admission=QuotaAdmission(inner=inner.admission, quotas=(quota,)))
    record = simulate(sharing, jobs, budget=BUDGET, horizon_s=10 * alone_s(jobs) + 1000)
    assert record.most_active <= 2
    assert all(record.steps[f"r{i:02d}"] == job.n_steps for i, job in enumerate(jobs))


@dataclass(frozen=True, kw_only=True)
class Misjudged:
    """HRRN that is told times wrong by up to five times, each run's its own way."""

    inner: HrrnDispatch = field(default_factory=HrrnDispatch)
    name: str = "misjudged"

    def decide(self, view: DispatchView, state: dict, now: float):
        items = tuple(
            replace(
                item, est_s=item.est_s * (0.2, 1.0, 5.0)[int(item.run_id[1:]) % 3], switch_s=1.0
            )
            for item in view.items
        )
        return self.inner.decide(replace(view, items=items), state, now)


@settings(max_examples=15)
@given(jobs=jobs_of_any_kind)
def test_wrong_estimates_starve_nobody(jobs: list[Job]) -> None:
    sharing = replace(make("plait"), dispatch=Misjudged())
    record = simulate(sharing, jobs, budget=BUDGET, horizon_s=10 * alone_s(jobs) + 1000)
    assert all(record.steps[f"r{i:02d}"] == job.n_steps for i, job in enumerate(jobs))


@settings(max_examples=8)
@given(n_short=st.integers(2, 5), long_s=st.floats(20, 100), level=st.integers(0, 3))
def test_a_long_operation_does_not_starve_behind_short_ones(
    n_short: int, long_s: float, level: int
) -> None:
    """The short ones fill the trainer and have the priority. The long one goes first when
    W / S of it exceeds theirs, 2^level · W' / 1, W' being at most a round of all."""
    short = [Job(rollout_s=0.5, train_s=1.0, kv_blocks=1, priority=level)] * n_short
    long = Job(rollout_s=0.5, train_s=long_s, kv_blocks=1)
    sharing = make("plait", dispatch="hrrn")
    record = simulate(sharing, [long, *short], budget=BUDGET, horizon_s=4000)
    bound_s = 2**level * (n_short + 1) * long_s + long_s + n_short
    assert max(record.waits_s["r00"]) <= bound_s
    assert record.steps["r00"] >= 2
    assert min(record.steps[f"r{i:02d}"] for i in range(1, n_short + 1)) > record.steps["r00"]


@settings(max_examples=5)
@given(n=st.integers(2, 5))
def test_round_robin_gives_everybody_the_same_turns(n: int) -> None:
    jobs = [Job(rollout_s=0.001, train_s=1.0 + i, kv_blocks=1) for i in range(n)]
    record = simulate(make("plait", dispatch="round-robin"), jobs, budget=BUDGET, horizon_s=500)
    steps = list(record.steps.values())
    assert max(steps) - min(steps) <= 1


def test_shortest_first_starves_who_is_long() -> None:
    """What the baseline is here to show."""
    jobs = [Job(rollout_s=0.001, train_s=1.0, kv_blocks=1)] * 3
    jobs.append(Job(rollout_s=0.001, train_s=5.0, kv_blocks=1, arrives_s=0.5))
    record = simulate(make("plait", dispatch="sjf"), jobs, budget=BUDGET, horizon_s=500)
    assert record.steps["r03"] == 0
