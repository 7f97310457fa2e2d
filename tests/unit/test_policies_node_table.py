"""Node groups that have not changed are followed, not read anew, and nothing else is decided."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_policies_node_groups import group, placed, waiting

from plait.core.placement import Demand, GroupFacts, PlacedRun, PlacementView
from plait.policies import node_index
from plait.policies.node_groups import CyclicPlacement


def test_only_groups_that_changed_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    same = node_index._same

    def counting(known, runs):
        compared.append(len(runs))
        return same(known, runs)

    monkeypatch.setattr(node_index, "_same", counting)
    policy = CyclicPlacement()
    groups = [group(name, placed(f"p{name}")) for name in "abcdefgh"]
    _, state = policy.decide(PlacementView(groups=tuple(groups), waiting=()), {}, 0.0)
    assert len(compared) == 8
    compared.clear()
    groups[3] = group("d")
    later = PlacementView(groups=tuple(groups), waiting=(waiting("x"),))
    plan, state = policy.decide(later, state, 1.0)
    assert compared == [0]
    assert plan.bind[0].group_id == "d"


KINDS = [
    Demand(period_s=100.0, bins=(1.0, 0.0)),
    Demand(period_s=100.0, bins=(0.0, 1.0)),
    Demand(period_s=70.0, bins=(0.5, 0.0, 1.0)),
    None,
]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_state_without_its_index_gives_the_same_plan(seed: int) -> None:
    rng, policy, state = Random(seed), CyclicPlacement(), {}
    runs: dict[str, list[PlacedRun]] = {name: [] for name in "abcd"[: rng.randint(1, 4)]}
    facts: dict[str, GroupFacts] = {}
    queue = {}
    for now in range(25):
        for _ in range(rng.randint(0, 2)):
            new = waiting(
                f"r{len(queue)}-{now}",
                rng.choice(KINDS),
                order=now,
                slack_s=rng.choice([1.0, 40.0]),
                expected_s=rng.choice([0.0, 5.0]),
            )
            queue[new.run_id] = new
        for name, there in runs.items():
            if there and rng.random() < 0.2:
                there.pop(rng.randrange(len(there)))
            if there and rng.random() < 0.1:
                there[0] = replace(there[0], demand=rng.choice(KINDS))
            made = group(name, *there)
            facts[name] = facts[name] if facts.get(name) == made else made
        view = PlacementView(groups=tuple(facts.values()), waiting=tuple(queue.values()))
        bare = json.loads(json.dumps(state))
        without, state_without = policy.decide(view, bare, float(now))
        plan, state = policy.decide(view, state, float(now))
        assert plan == without
        assert state == state_without
        for binding in plan.bind:
            if rng.random() < 0.1:
                continue  # not applied
            run = queue.pop(binding.run_id)
            runs[binding.group_id].append(
                PlacedRun(
                    run_id=run.run_id,
                    demand=run.demand,
                    phase_s=binding.phase_s,
                    host_bytes=run.host_bytes,
                    slack_s=run.slack_s,
                )
            )
