"""A closed loop of runs around a rollout pool and a trainer, driven by a policy on a manual clock.

Runs arrive, wait for admission, roll out for a while, wait for the trainer, are updated, and begin
again. Every decision is checked for what holds for all policies: it is deterministic, changes none
of its inputs, its state survives JSON, and every run that waits is told why, once.
"""

import copy
import json
from dataclasses import dataclass, field

from plait.core.clock import ManualClock
from plait.core.ids import OpId, RunId, TenantId
from plait.core.plan import AdmissionPlan, DispatchPlan
from plait.core.runs import Stage
from plait.core.view import AdmissionView, DispatchView, RunView, WorkItem
from plait.policies.protocol import Sharing

PURITY_EVERY = 11
"""The check costs ten times the decision."""
TOGETHER = 0.8
TICK_S = 100.0
"""Longest time without a decision, as the runtime decides now and then without an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a simulated run does at every step."""

    arrives_s: float = 0.0
    rollout_s: float = 10.0
    train_s: float = 1.0
    rows: int = 0
    """Of its gradient, where that may share a pass; together they take ``TOGETHER`` of the time."""
    idle_s: float = 0.0
    """Between an update and the next rollout."""
    idle_steps: int = 1_000_000
    """Steps after which it no longer idles."""
    kv_blocks: int = 10
    weight: float = 1.0
    priority: int = 0
    n_steps: int = 1_000_000
    evaluates: bool = False
    """Every second rollout is an evaluation: no update follows it."""


@dataclass(slots=True, kw_only=True)
class _Live:
    job: Job
    order: int
    stage: Stage = Stage.IDLE
    since_s: float = 0.0
    until_s: float | None = None
    served: float = 0.0
    step: int = 0
    rollouts: int = 0

    @property
    def run_id(self) -> RunId:
        return RunId(f"r{self.order:02d}")


@dataclass(slots=True, kw_only=True)
class Record:
    """What the loop saw."""

    waits_s: dict[str, list[float]] = field(default_factory=dict)
    """By run: how long each wait for admission or for the trainer took."""
    grants: list[RunId] = field(default_factory=list)
    train_starts: list[tuple[float, RunId]] = field(default_factory=list)
    went_along: int = 0
    served: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    most_active: int = 0
    most_mid_step: int = 0
    over_budget: int = 0
    reasons: set[str] = field(default_factory=set)
    trains_during_rollout: int = 0
    ended_s: float = 0.0


def simulate(
    sharing: Sharing,
    jobs: list[Job],
    *,
    budget: int,
    horizon_s: float,
    pause: dict[int, tuple[float, float]] | None = None,
) -> Record:
    """Run the loop until ``horizon_s`` or until all jobs have ended. ``pause`` maps a job's number
    to a span in which it is paused whenever it waits for a rollout."""
    clock = ManualClock()
    live = [_Live(job=job, order=i) for i, job in enumerate(jobs)]
    states: dict[str, dict] = {"admission": {}, "dispatch": {}}
    record = Record()
    training: _Live | None = None
    while clock.now() < horizon_s:
        now = clock.now()
        for run in live:
            span = (pause or {}).get(run.order, (0.0, 0.0))
            if run.stage is Stage.WAIT_ROLLOUT and span[0] <= now < span[1]:
                run.stage = Stage.PAUSED
            elif run.stage is Stage.PAUSED and now >= span[1]:
                _enter(run, Stage.WAIT_ROLLOUT, now)
        training = _finish_due(live, training, now)
        if all(run.stage.ended for run in live):
            break
        here = [run for run in live if run.job.arrives_s <= now]
        for run in here:
            if run.stage is Stage.IDLE and run.until_s is None:
                _enter(run, Stage.WAIT_ROLLOUT, now)
        _admit(sharing, here, states, budget, now, record)
        if training is None:
            training = _dispatch(sharing, here, states, now, record)
        ends = [run.until_s for run in live if run.until_s is not None and run.until_s > now]
        ends += [run.job.arrives_s for run in live if run.job.arrives_s > now]
        ends += [t for span in (pause or {}).values() for t in span if t > now]
        clock.advance(min(min(ends, default=now + TICK_S), now + TICK_S) - now)
    record.ended_s = clock.now()
    record.served = {run.run_id: run.served for run in live}
    record.steps = {run.run_id: run.step for run in live}
    for run in live:
        if run.stage in (Stage.WAIT_ROLLOUT, Stage.WAIT_TRAIN):
            record.waits_s.setdefault(run.run_id, []).append(clock.now() - run.since_s)
    return record


def _enter(run: _Live, stage: Stage, now: float, until_s: float | None = None) -> None:
    run.stage, run.since_s, run.until_s = stage, now, until_s


def _finish_due(live: list[_Live], training: _Live | None, now: float) -> _Live | None:
    for run in live:
        if run.until_s is None or run.until_s > now:
            continue
        if run.stage is Stage.ROLLOUT:
            run.served += run.job.rollout_s
            run.rollouts += 1
            evaluated = run.job.evaluates and run.rollouts % 2 == 0
            _enter(run, Stage.WAIT_ROLLOUT if evaluated else Stage.WAIT_TRAIN, now)
        elif run.stage is Stage.TRAIN:
            run.served += run.job.train_s
            run.step += 1
            training = None
            if run.step >= run.job.n_steps:
                _enter(run, Stage.DONE, now)
            elif run.job.idle_s and run.step <= run.job.idle_steps:
                _enter(run, Stage.IDLE, now, now + run.job.idle_s)
            else:
                _enter(run, Stage.WAIT_ROLLOUT, now)
        elif run.stage is Stage.IDLE:
            _enter(run, Stage.WAIT_ROLLOUT, now)
    return training


def _views(live: list[_Live]) -> tuple[RunView, ...]:
    return tuple(
        RunView(
            run_id=run.run_id,
            tenant_id=TenantId("t"),
            order=run.order,
            weight=run.job.weight,
            priority=run.job.priority,
            stage=run.stage,
            stage_since_s=run.since_s,
            step=run.step,
            served=run.served,
            kv_blocks=run.job.kv_blocks,
            kv_blocks_worst=2 * run.job.kv_blocks,
            evaluating=run.job.evaluates and run.rollouts % 2 == 1,
        )
        for run in live
    )


def decide(policy, view, state: dict, now: float):
    """One decision; one in ``PURITY_EVERY`` is checked for purity."""
    if int(now * 1000) % PURITY_EVERY:
        return policy.decide(view, state, now)
    frozen = copy.deepcopy(state)
    plan, new_state = policy.decide(view, state, now)
    assert state == frozen, "the policy changed the state it was given"
    again = policy.decide(view, json.loads(json.dumps(state)), now)
    assert again == (plan, new_state), "the same inputs gave another plan"
    assert json.loads(json.dumps(new_state)) == new_state, "the state does not survive JSON"
    return plan, new_state


def _admit(sharing, live, states, budget: int, now: float, record: Record) -> None:
    view = AdmissionView(budget_blocks=budget, runs=_views(live))
    plan, states["admission"] = decide(sharing.admission, view, states["admission"], now)
    check_admission(view, plan)
    record.reasons |= {wait.reason for wait in plan.waits}
    by_id = {run.run_id: run for run in live}
    before = [run for run in live if run.stage is Stage.ROLLOUT]
    for run_id in plan.admit:
        run = by_id[run_id]
        record.waits_s.setdefault(run_id, []).append(now - run.since_s)
        record.grants.append(run_id)
        _enter(run, Stage.ROLLOUT, now, now + run.job.rollout_s)
    rolling = [run for run in live if run.stage is Stage.ROLLOUT]
    used = sum(run.job.kv_blocks for run in rolling)
    if plan.admit and used > budget and (before or len(rolling) > 1):
        record.over_budget += 1
    record.most_active = max(record.most_active, len(rolling))
    mid_step = [r for r in live if r.stage in (Stage.ROLLOUT, Stage.WAIT_TRAIN, Stage.TRAIN)]
    record.most_mid_step = max(record.most_mid_step, len(mid_step))


def _dispatch(sharing, live, states, now: float, record: Record) -> _Live | None:
    items = tuple(
        WorkItem(
            op_id=OpId(f"op-{run.run_id}-{run.step}"),
            run_id=run.run_id,
            kind="update",
            est_s=run.job.train_s,
            tokens=100,
            waiting_since_s=run.since_s,
            rows=run.job.rows,
        )
        for run in live
        if run.stage is Stage.WAIT_TRAIN
    )
    view = DispatchView(items=items, runs=_views(live))
    plan, states["dispatch"] = decide(sharing.dispatch, view, states["dispatch"], now)
    check_dispatch(view, plan)
    record.reasons |= {wait.reason for wait in plan.waits}
    by_op = {f"op-{r.run_id}-{r.step}": r for r in live if r.stage is Stage.WAIT_TRAIN}
    together = [by_op[op_id] for op_id in (plan.op_id, *plan.along) if op_id is not None]
    took_s = sum(run.job.train_s for run in together) * (TOGETHER if plan.along else 1.0)
    record.went_along += len(plan.along)
    for run in together:
        record.waits_s.setdefault(run.run_id, []).append(now - run.since_s)
        record.train_starts.append((now, run.run_id))
        record.trains_during_rollout += any(r.stage is Stage.ROLLOUT for r in live)
        _enter(run, Stage.TRAIN, now, now + took_s)
    return together[0] if together else None


def check_admission(view: AdmissionView, plan: AdmissionPlan) -> None:
    """Every waiting run is admitted or told why, exactly once; positions count up from 1."""
    waiting = {run.run_id for run in view.runs if run.stage is Stage.WAIT_ROLLOUT}
    paused = {run.run_id for run in view.runs if run.stage is Stage.PAUSED}
    assert len(set(plan.admit)) == len(plan.admit)
    assert set(plan.admit) <= waiting
    told = [wait.run_id for wait in plan.waits]
    assert sorted(told) == sorted((waiting - set(plan.admit)) | paused)
    assert all(wait.reason and wait.detail for wait in plan.waits)
    positions = [wait.position for wait in plan.waits if wait.position]
    assert positions == list(range(1, len(positions) + 1))


def check_dispatch(view: DispatchView, plan: DispatchPlan) -> None:
    """The chosen items are the view's, and go together only if all may; every other run with work
    is told why, once."""
    ops = [op_id for op_id in (plan.op_id, *plan.along) if op_id is not None]
    picked = [item for item in view.items if item.op_id in ops]
    chosen = [item.run_id for item in picked]
    assert len(chosen) == len(ops)
    assert not plan.along or all(item.rows for item in picked)
    told = sorted(wait.run_id for wait in plan.waits)
    assert told == sorted({item.run_id for item in view.items} - set(chosen))
    assert all(wait.reason and wait.detail for wait in plan.waits)
