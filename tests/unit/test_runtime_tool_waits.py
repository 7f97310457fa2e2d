from dataclasses import replace
from typing import Any

import pytest

from plait.core.ids import LOCAL_TENANT, RunId, WorkerId
from plait.core.plan import Keep
from plait.core.runs import RunSpec
from plait.policies.residency import KvResidency, LeaveAll
from plait.runtime import messages as m
from plait.runtime.facts import RunFacts
from plait.runtime.tool_waits import ToolWaits

RUN, WORKER = RunId("a"), WorkerId("w")
TOKENS = (1, 2, 3)
SPAN = m.Span(
    kind="rollout",
    t0=0.0,
    t1=1.0,
    threads=1,
    tokens=10,
    steps=1,
    tokens_by_run={RUN: 10},
    kv_blocks_idle=100,
    n_evicted=300,
)


class World:
    """A clock, a journal, and samples that only note what they are told."""

    def __init__(self, policy: Any = None) -> None:
        self.t, self.marks, self.plans = 1.0, [], []
        self.facts = RunFacts(
            spec=RunSpec(run_id=RUN, tenant_id=LOCAL_TENANT, base_model="tiny"), order=0
        )
        self.waits = ToolWaits(
            policy or KvResidency(),
            self,  # type: ignore[arg-type]
            now=lambda: self.t,
            journal=self,  # type: ignore[arg-type]
        )

    def mark_prefix(self, *mark: Any) -> None:
        self.marks.append(mark)

    def keeps(self, kind: str) -> bool:
        return True

    def decision(self, kind: str, view: Any, state: Any, plan: Any) -> None:
        self.plans.append((kind, view, plan.keep))

    def wait(self, seconds: float) -> Keep:
        with self.waits.wait(self.facts, TOKENS, 4):
            self.t += seconds
        return self.plans[-1][2]


def test_a_decision_is_recorded_and_carried_out() -> None:
    world = World()
    world.waits.reported(WORKER, SPAN)
    assert world.wait(0.1) is Keep.KEEP
    assert world.marks == [(RUN, 4, TOKENS, Keep.KEEP)]
    kind, view, _ = world.plans[0]
    assert kind == "residency"
    assert (view.tokens, view.idle_blocks) == (3, 100)
    assert view.recompute_s == pytest.approx(0.3)
    assert view.evicted_per_s == pytest.approx(300 * 0.6931 / 5, rel=1e-3)


def test_long_waits_are_learned_and_make_room() -> None:
    world = World()
    for _ in range(4):
        world.waits.reported(WORKER, SPAN)
        last = world.wait(20.0)
    assert last is Keep.DROP
    assert world.marks[-1] == (RUN, 4, TOKENS, Keep.DROP)


def test_nothing_is_sent_without_pressure_or_when_off() -> None:
    calm, off, lost = World(), World(LeaveAll()), World()
    calm.waits.reported(WORKER, replace(SPAN, n_evicted=0))
    off.waits.reported(WORKER, SPAN)
    lost.waits.reported(WORKER, SPAN)
    lost.waits.lost(WORKER)
    for world in (calm, off, lost):
        world.waits.reported(WorkerId("t"), replace(SPAN, kind="train"))
        assert world.wait(1.0) is Keep.LEAVE
        assert world.marks == []


def test_a_wait_that_fails_is_still_measured() -> None:
    world = World()
    tool = world.waits.wait(world.facts, TOKENS, 1)
    tool.__enter__()
    world.t += 30.0
    error = OSError("tool")
    assert not tool.__exit__(OSError, error, None)
    world.waits.reported(WORKER, SPAN)
    world.wait(0.0)
    assert world.plans[-1][1].expected_wait_s > 10
