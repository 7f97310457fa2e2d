"""Views: what policies are told in service, at any scale, for timing them."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from plait.core.colocation import ColocationView, WorkerFacts
from plait.core.ids import OpId, RunId, TenantId, WorkerId
from plait.core.placement import (
    Demand,
    GroupFacts,
    GroupId,
    PlacedRun,
    PlacementPlan,
    PlacementView,
    WaitingRun,
)
from plait.core.plan import DispatchPlan
from plait.core.runs import Stage
from plait.core.substages import Kind, Substage
from plait.core.view import DispatchView, RunView, WorkItem

GROUP_DEVICES = 8
GB = 10**9


def updates(
    n_runs: int, n_waiting: int, n_views: int, rng: random.Random
) -> Iterator[tuple[DispatchView, Callable[[DispatchPlan], None]]]:
    """Views of a trainer's queue; whoever is served leaves it, and another run comes."""
    runs = [
        RunView(
            run_id=RunId(f"run-{i}"),
            tenant_id=TenantId(f"tenant-{i % 40}"),
            order=i,
            weight=1.0,
            priority=0,
            stage=Stage.ROLLOUT,
            stage_since_s=0.0,
            step=0,
            served=0.0,
            kv_blocks=1,
            kv_blocks_worst=1,
        )
        for i in range(n_runs)
    ]
    waiting: dict[OpId, tuple[int, WorkItem]] = {}

    def ask(i: int, now: float) -> None:
        runs[i] = replace(runs[i], stage=Stage.WAIT_TRAIN, stage_since_s=now)
        op_id = OpId(f"{i}/{now}")
        waiting[op_id] = (
            i,
            WorkItem(
                op_id=op_id,
                run_id=runs[i].run_id,
                kind="ForwardBackward",
                est_s=rng.uniform(1.0, 10.0),
                tokens=50_000,
                waiting_since_s=now,
                switch_s=1.0,
            ),
        )

    for i in rng.sample(range(n_runs), n_waiting):
        ask(i, 0.0)

    def served(plan: DispatchPlan) -> None:
        assert plan.op_id is not None
        for op_id in (plan.op_id, *plan.along):
            i, item = waiting.pop(op_id)
            served_s = runs[i].served + item.est_s
            runs[i] = replace(runs[i], stage=Stage.ROLLOUT, served=served_s)

    for now in range(1, n_views + 1):
        view = DispatchView(items=tuple(item for _, item in waiting.values()), runs=tuple(runs))
        yield view, served
        free = [i for i in range(n_runs) if runs[i].stage is Stage.ROLLOUT]
        for i in rng.sample(free, max(0, n_waiting - len(waiting))):
            ask(i, float(now))


def placements(
    n_jobs: int, n_devices: int, n_views: int, rng: random.Random
) -> Iterator[tuple[PlacementView, float, Callable[[PlacementPlan], None]]]:
    """Views of node groups of eight: all jobs come, then one ends and another comes each time."""
    groups: dict[GroupId, list[PlacedRun]] = {
        GroupId(f"group-{g}"): [] for g in range(n_devices // GROUP_DEVICES)
    }
    waiting = {run.run_id: run for run in (_job(i, 0.0, rng) for i in range(n_jobs))}

    def placed(plan: PlacementPlan) -> None:
        for binding in plan.bind:
            run = waiting.pop(binding.run_id)
            groups[binding.group_id].append(
                PlacedRun(
                    run_id=run.run_id,
                    demand=run.demand,
                    phase_s=binding.phase_s,
                    host_bytes=run.host_bytes,
                    slack_s=run.slack_s,
                )
            )

    facts = {group_id: _facts(group_id, ()) for group_id in groups}
    for i in range(n_views + 1):
        if i > 0:
            ending = rng.choice([runs for runs in groups.values() if runs])
            ending.pop(0)
            run = _job(n_jobs + i, 10.0 * i, rng)
            waiting[run.run_id] = run
        for group_id, runs in groups.items():
            # As the cluster keeps them: made anew where something has changed.
            if facts[group_id].runs != tuple(runs):
                facts[group_id] = _facts(group_id, tuple(runs))
        view = PlacementView(groups=tuple(facts.values()), waiting=tuple(waiting.values()))
        yield view, 10.0 * i, placed


def look_ahead_view(n_runs: int, n_workers: int, rng: random.Random) -> ColocationView:
    """A step of each run before it: two kinds of rollout, reference, then training of all."""
    substages: list[Substage] = []
    for r in range(n_runs):
        ends: list[str] = []
        for w in range(n_workers):
            after: tuple[str, ...] = ()
            for place, kind in enumerate((Kind.BATCH, Kind.DECODE, Kind.REFERENCE)):
                key = f"run-{r}/0/{w}/{place}"
                tokens = 200 if kind is Kind.BATCH else 50
                work_s = rng.uniform(1.0, 10.0)
                substages.append(_substage(key, r, w, kind, work_s, 30, 15, tokens, after))
                after = (key,)
            ends.append(key)
        for w in range(n_workers):
            key, work_s = f"run-{r}/0/{w}/train", rng.uniform(1.0, 5.0)
            substages.append(_substage(key, r, w, Kind.TRAIN, work_s, 60, 40, 8000, tuple(ends)))
    workers = (WorkerFacts(worker_id=WorkerId(f"w{w}"), memory_bytes=100) for w in range(n_workers))
    return ColocationView(workers=tuple(workers), substages=tuple(substages))


def _substage(
    key: str,
    run: int,
    worker: int,
    kind: Kind,
    work_s: float,
    wants: int,
    least: int,
    tokens: int,
    after: tuple[str, ...],
) -> Substage:
    return Substage(
        key=key,
        run_id=RunId(f"run-{run}"),
        worker=WorkerId(f"w{worker}"),
        kind=kind,
        work_s=work_s,
        memory_bytes=wants,
        least_bytes=least,
        tokens=tokens,
        after=after,
    )


def _facts(group_id: GroupId, runs: tuple[PlacedRun, ...]) -> GroupFacts:
    return GroupFacts(
        group_id=group_id,
        n_devices=GROUP_DEVICES,
        device_bytes=80 * GB,
        host_bytes=2000 * GB,
        runs=runs,
    )


def _job(i: int, now: float, rng: random.Random) -> WaitingRun:
    """Steps of minutes, of which it uses its group for a sixth to a half."""
    busy = round(64 * rng.uniform(0.15, 0.5))
    demand = Demand(
        period_s=rng.uniform(200.0, 1200.0), bins=tuple([1.0] * busy + [0.0] * (64 - busy))
    )
    return WaitingRun(
        run_id=RunId(f"job-{i}"),
        tenant_id=TenantId(f"tenant-{i % 40}"),
        order=i,
        since_s=now,
        n_devices=GROUP_DEVICES,
        device_bytes=50 * GB,
        host_bytes=300 * GB,
        slack_s=0.5 * demand.period_s,
        demand=demand,
        expected_s=3600.0 * rng.uniform(1.0, 20.0),
    )
