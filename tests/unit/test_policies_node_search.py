"""What a decision over a large cluster looks at, and what it takes over from the last one."""

from random import Random

import pytest

from plait.core.ids import RunId, TenantId
from plait.core.placement import (
    Demand,
    GroupFacts,
    GroupId,
    PlacedRun,
    PlacementView,
    WaitingRun,
)
from plait.policies import node_index, node_search, rings
from plait.policies.node_groups import CyclicPlacement
from plait.policies.node_search import LOOKS

N_GROUPS = 300


def demand(rng: Random) -> Demand:
    busy = rng.randint(2, 8)
    return Demand(period_s=rng.uniform(100, 500), bins=(1.0,) * busy + (0.0,) * (16 - busy))


def run(i: int, rng: Random) -> WaitingRun:
    return WaitingRun(
        run_id=RunId(f"r{i}"),
        tenant_id=TenantId("t"),
        order=i,
        since_s=0.0,
        n_devices=8,
        device_bytes=1,
        host_bytes=1,
        slack_s=50.0,
        demand=demand(rng),
    )


def cluster(rng: Random) -> list[GroupFacts]:
    return [
        GroupFacts(
            group_id=GroupId(f"g{i}"),
            n_devices=8,
            device_bytes=1,
            host_bytes=9,
            runs=tuple(
                PlacedRun(
                    run_id=RunId(f"p{i}/{k}"),
                    demand=demand(rng),
                    phase_s=rng.uniform(0, 100),
                    host_bytes=1,
                    slack_s=50.0,
                )
                for k in range(2)
            ),
        )
        for i in range(N_GROUPS)
    ]


def test_bins_of_few_groups_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(1)
    groups = tuple(cluster(rng))
    _, state = CyclicPlacement().decide(PlacementView(groups=groups, waiting=()), {}, 0.0)
    calls = {"overlaps": 0, "entry": 0}
    for module, name in ((rings, "overlaps"), (node_index, "entry")):
        whole = getattr(module, name)

        def counted(*args, _whole=whole, _name=name):
            calls[_name] += 1
            return _whole(*args)

        monkeypatch.setattr(module, name, counted)
    view = PlacementView(groups=groups, waiting=(run(0, rng),))
    plan, state = CyclicPlacement().decide(view, state, 1.0)
    assert len(plan.bind) == 1
    assert calls["overlaps"] <= LOOKS + 2 * LOOKS
    assert calls["entry"] == 1, "only the group that was changed is projected anew"


def test_what_is_forgotten_changes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def plans() -> list[object]:
        rng = Random(3)
        groups = tuple(cluster(rng)[:LOOKS])
        waiting = [run(i, rng) for i in range(6)]
        state: dict[str, object] = {}
        found: list[object] = []
        for now in range(12):
            view = PlacementView(groups=groups, waiting=tuple(waiting[now % 3 : now % 3 + 3]))
            plan, state = CyclicPlacement().decide(view, state, float(now))
            found.append((plan.bind, tuple(plan.waits)))
        return found

    remembered = plans()
    forgot: list[int] = []
    forget = node_search.GroupTable._forget
    monkeypatch.setattr(
        node_search.GroupTable, "_forget", lambda self: (forgot.append(1), forget(self))
    )
    monkeypatch.setattr(node_search, "OFFERS", 3)
    assert plans() == remembered
    assert len(forgot) > 2


def test_the_bound_prunes_nothing_that_is_better() -> None:
    """With every group's bins looked at by hand, none has less overlap than the one chosen."""
    rng = Random(2)
    groups = cluster(rng)[:LOOKS]
    new = run(0, rng)
    plan, state = CyclicPlacement().decide(
        PlacementView(groups=tuple(groups), waiting=(new,)), {}, 0.0
    )
    horizon_s = state["horizon_s"]
    shifts, phases_s = rings.phases(new.demand, horizon_s)
    traces = rings.shifted(rings.project(new.demand, 0.0, horizon_s), shifts)
    least = {}
    for group in groups:
        load = sum(
            (rings.project(r.demand, r.phase_s, horizon_s) for r in group.runs), rings.nothing()
        )
        overs = rings.overlaps(load, traces)
        least[group.group_id] = float(overs.min())
        if plan.bind and plan.bind[0].group_id == group.group_id:
            at = list(phases_s).index(plan.bind[0].phase_s)
            assert overs[at] == pytest.approx(overs.min())
    if plan.bind:
        chosen = least[plan.bind[0].group_id]
        assert chosen <= min(least.values()) + 0.5 * rings.steps(new.demand, horizon_s)


def test_who_found_no_place_is_not_searched_for_until_something_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Demand(period_s=100.0, bins=(1.0,))
    full = PlacedRun(run_id=RunId("p"), demand=whole, phase_s=0.0, host_bytes=1, slack_s=0.0)
    group = GroupFacts(
        group_id=GroupId("g"), n_devices=8, device_bytes=1, host_bytes=9, runs=(full,)
    )
    waiting = (run(0, Random(0)),)
    policy = CyclicPlacement()
    plan, state = policy.decide(PlacementView(groups=(group,), waiting=waiting), {}, 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(rings, "overlaps", None)
        again, state = policy.decide(PlacementView(groups=(group,), waiting=waiting), state, 1.0)
    assert again.waits == plan.waits
    empty = GroupFacts(group_id=GroupId("g"), n_devices=8, device_bytes=1, host_bytes=9)
    plan, _ = policy.decide(PlacementView(groups=(empty,), waiting=waiting), state, 2.0)
    assert len(plan.bind) == 1
