"""What holds for placement whatever arrives, ends, drifts, or lasts longer than was expected."""

import copy
import json

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from plait.core.ids import RunId, TenantId
from plait.core.placement import (
    Demand,
    GroupFacts,
    GroupId,
    PlacedRun,
    PlacementView,
    WaitingRun,
)
from plait.policies import rings
from plait.policies.node_groups import CyclicPlacement
from plait.policies.node_queue import AGE_BINDS
from plait.policies.quotas import Quota

GROUPS = {"f": (8, 40), "g": (8, 80), "h": (16, 40)}
"""Devices and host memory."""

demands = st.builds(
    Demand,
    period_s=st.sampled_from([10.0, 33.0, 100.0, 170.0]),
    bins=st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=6).map(tuple),
)


class Cluster(RuleBasedStateMachine):
    """Node groups, arrivals and ends; every plan is applied and checked."""

    @initialize(
        prefer=st.sampled_from(["spread", "pack"]), backfill=st.booleans(), quota=st.booleans()
    )
    def begin(self, prefer: str, backfill: bool, quota: bool) -> None:
        quotas = (Quota(tenant_id=TenantId("t1"), max_runs=2),) if quota else ()
        self.policy = CyclicPlacement(prefer=prefer, backfill=backfill, quotas=quotas)
        self.quota = quota
        self.now, self.n, self.state = 0.0, 0, {}
        self.waiting: dict[str, WaitingRun] = {}
        self.groups: dict[str, list[PlacedRun]] = {name: [] for name in GROUPS}
        self.home: dict[str, str] = {}
        self.tenant: dict[str, str] = {}
        self.ends: dict[str, float] = {}

    @rule(
        demand=st.none() | demands,
        host=st.integers(1, 50),
        n_devices=st.sampled_from([1, 8, 16, 17]),
        slack=st.floats(0.0, 2.0),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["t1", "t2"]),
        expected_s=st.sampled_from([0.0, 100.0, 1000.0]),
        wrong=st.sampled_from([0.2, 1.0, 5.0]),
    )
    def arrive(self, demand, host, n_devices, slack, priority, tenant, expected_s, wrong) -> None:
        name = f"r{self.n}"
        self.waiting[name] = WaitingRun(
            run_id=RunId(name),
            tenant_id=TenantId(tenant),
            order=self.n,
            since_s=self.now,
            n_devices=n_devices,
            device_bytes=10,
            host_bytes=host,
            slack_s=slack * (10.0 if demand is None else demand.period_s),
            demand=demand,
            priority=priority,
            expected_s=expected_s,
        )
        self.tenant[name] = tenant
        self.ends[name] = wrong * (expected_s or 300.0)
        self.n += 1
        self.decide()

    @rule(seconds=st.sampled_from([1.0, 50.0, 400.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for name, group in list(self.home.items()):
            if self.ends[name] <= self.now:
                self.groups[group] = [r for r in self.groups[group] if r.run_id != name]
                del self.home[name]
        self.decide()

    @rule(demand=demands, data=st.data())
    def profile(self, demand: Demand, data) -> None:
        """A cold run is profiled, or a demand drifts."""
        if not self.home:
            return
        name = data.draw(st.sampled_from(sorted(self.home)))
        runs = self.groups[self.home[name]]
        self.groups[self.home[name]] = [
            PlacedRun(
                run_id=r.run_id,
                demand=demand if r.run_id == name else r.demand,
                phase_s=r.phase_s,
                host_bytes=r.host_bytes,
                slack_s=r.slack_s,
            )
            for r in runs
        ]
        self.decide()

    @rule(data=st.data())
    def cancel(self, data) -> None:
        if self.waiting:
            del self.waiting[data.draw(st.sampled_from(sorted(self.waiting)))]
            self.decide()

    def view(self) -> PlacementView:
        return PlacementView(
            groups=tuple(
                GroupFacts(
                    group_id=GroupId(name),
                    n_devices=n,
                    device_bytes=10,
                    host_bytes=host,
                    runs=tuple(self.groups[name]),
                )
                for name, (n, host) in GROUPS.items()
            ),
            waiting=tuple(self.waiting.values()),
        )

    def decide(self) -> None:
        view, frozen = self.view(), copy.deepcopy(self.state)
        plan, state = self.policy.decide(view, self.state, self.now)
        assert self.state == frozen, "the policy changed the state it was given"
        again = self.policy.decide(view, json.loads(json.dumps(self.state)), self.now)
        assert again == (plan, state), "the state does not survive JSON"
        told = [w.run_id for w in plan.waits] + [b.run_id for b in plan.bind]
        assert sorted(told) == sorted(self.waiting), "bound or told why, once"
        assert all(w.reason and w.detail for w in plan.waits)
        assert [w.position for w in plan.waits] == list(range(1, len(plan.waits) + 1))
        for binding in plan.shift:
            assert self.home[binding.run_id] == binding.group_id, "affinity"
        for binding in plan.bind:
            assert binding.run_id not in self.home, "a bound run never moves"
            self.apply(binding.run_id, binding.group_id, binding.phase_s)
        self.state = state

    def apply(self, name: str, group: str, phase_s: float) -> None:
        run = self.waiting.pop(name)
        there = self.groups[group]
        assert run.n_devices <= GROUPS[group][0]
        assert all(r.demand is not None for r in there), "a cold run is joined by nobody"
        there.append(
            PlacedRun(
                run_id=run.run_id,
                demand=run.demand,
                phase_s=phase_s,
                host_bytes=run.host_bytes,
                slack_s=run.slack_s,
            )
        )
        self.home[name] = group
        self.ends[name] += self.now
        self.check_slack(there)

    def check_slack(self, there: list[PlacedRun]) -> None:
        periods = [r.demand.period_s for r in there if r.demand is not None]
        horizon_s = max(self.state.get("horizon_s", 0.0), rings.horizon(max(periods, default=0.0)))
        horizon_s = max(horizon_s, rings.horizon(self.longest_s()))
        traces = [rings.project(r.demand, r.phase_s, horizon_s) for r in there]
        over = (sum(traces, rings.nothing()) - 1.0).clip(min=0.0)
        for run, trace in zip(there, traces, strict=True):
            if run.demand is not None:
                delay_s = rings.delay_s(over, trace, run.demand, horizon_s)
                assert delay_s <= run.slack_s + run.demand.period_s / rings.PHASES + 1e-6 or (
                    over.sum() <= 1e-6
                )

    def longest_s(self) -> float:
        runs = [*self.waiting.values(), *(r for rs in self.groups.values() for r in rs)]
        return max((r.demand.period_s for r in runs if r.demand is not None), default=0.0)

    @invariant()
    def memory_is_kept(self) -> None:
        if not hasattr(self, "groups"):
            return
        for name, (_, host) in GROUPS.items():
            assert sum(r.host_bytes for r in self.groups[name]) <= host

    @invariant()
    def quotas_are_kept(self) -> None:
        if getattr(self, "quota", False):
            assert sum(self.tenant[name] == "t1" for name in self.home) <= 2

    def teardown(self) -> None:
        """No starvation: if newcomers keep coming, each that waits now is bound nevertheless."""
        if not hasattr(self, "groups"):
            return
        mine = {
            name
            for name, run in self.waiting.items()
            if any(run.n_devices <= n and run.host_bytes <= h for n, h in GROUPS.values())
        }
        short = Demand(period_s=10.0, bins=(0.3,))
        for _ in range(40 + 12 * AGE_BINDS * len(mine)):
            if not mine & set(self.waiting):
                return
            self.arrive_plain(short)
            self.pass_time(60.0)
        assert not mine & set(self.waiting), "it waits for ever"

    def arrive_plain(self, demand: Demand) -> None:
        name = f"r{self.n}"
        self.waiting[name] = WaitingRun(
            run_id=RunId(name),
            tenant_id=TenantId("t2"),
            order=self.n,
            since_s=self.now,
            n_devices=1,
            device_bytes=10,
            host_bytes=5,
            slack_s=30.0,
            demand=demand,
            priority=9,
            expected_s=100.0,
        )
        self.tenant[name], self.ends[name] = "t2", 150.0
        self.n += 1
        self.decide()


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
