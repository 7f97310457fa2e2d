from dataclasses import replace
from math import inf
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import RunId, TenantId
from plait.core.placement import Demand, PlacedRun, WaitingRun
from plait.policies.node_rooms import Rooms, mean


def one_by_one(head: WaitingRun, runs, host_bytes: int, bound: dict, now: float) -> float:
    """As they end, until there is room."""
    ends = [(bound.get(run.run_id, {}).get("until"), run) for run in runs]
    left = [
        (inf if end is None else max(now, end), mean(r.demand), r.host_bytes) for end, r in ends
    ]
    left.sort(reverse=True)
    at = now
    while left:
        at = left.pop()[0]
        n_bytes = sum(entry[2] for entry in left)
        load = sum(entry[1] for entry in left) + mean(head.demand)
        if n_bytes <= host_bytes - head.host_bytes and load <= 1.0:
            break
    return at


HEAD = WaitingRun(
    run_id=RunId("h"),
    tenant_id=TenantId("t"),
    order=0,
    since_s=0.0,
    n_devices=1,
    device_bytes=1,
    host_bytes=3,
    slack_s=0.0,
)


@given(st.integers(0, 10**6))
def test_room_is_when_enough_have_ended(seed: int) -> None:
    rng, rooms, bound = Random(seed), Rooms(), {}
    groups: list[tuple[PlacedRun, ...]] = [() for _ in range(rng.randint(1, 5))]
    for step in range(6):
        fresh = rng.sample(range(len(groups)), rng.randint(0, len(groups)))
        for i in fresh:
            names = [RunId(f"r{step}/{i}/{k}") for k in range(rng.randint(0, 5))]
            for name in names:
                if rng.random() < 0.8:
                    bound[name] = {"until": rng.choice([None, rng.uniform(0, 100)])}
            shares = [rng.choice([None, 0.25, 0.5]) for _ in names]
            groups[i] = tuple(
                PlacedRun(
                    run_id=name,
                    demand=None if s is None else Demand(period_s=1.0, bins=(s,)),
                    phase_s=0.0,
                    host_bytes=rng.randint(1, 4),
                    slack_s=0.0,
                )
                for name, s in zip(names, shares, strict=True)
            )
        rooms.follow(fresh, groups, bound)
        share, now = rng.choice([None, 0.25, 0.5]), rng.uniform(0, 100)
        head = replace(HEAD, demand=None if share is None else Demand(period_s=1.0, bins=(share,)))
        found = rooms.at(head, np.full(len(groups), 9.0), now)
        assert list(found) == [one_by_one(head, runs, 9, bound, now) for runs in groups]
