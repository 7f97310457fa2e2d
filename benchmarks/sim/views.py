"""Views: what policies are told in service, at any scale, for timing them."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush

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

MEAN_UPDATE_S = 5.0
LASTS = 50
"""Updates of a run."""
RESIDENT = 8
"""Runs whose state is on the trainer: the last that were served."""
GROUP_DEVICES = 8
GB = 10**9


class Trainer:
    """A trainer's queue in service: runs roll out, ask for their update, are served one after the
    other, and roll out again; one in ``LASTS`` of them ends then, and another comes.

    Rollouts are as long as makes ``n_waiting`` wait on average. Facts that have not changed are the
    same objects from one view to the next; ``anew=True`` makes all of them anew for each.
    """

    def __init__(self, n_runs: int, n_waiting: int, rng: random.Random) -> None:
        self.now = 0.0
        self._rng, self._n = rng, 0
        self._rollout_s = (n_runs - n_waiting) * MEAN_UPDATE_S
        self._runs: dict[RunId, RunView] = {}
        self._waiting: dict[OpId, WorkItem] = {}
        self._rolling: list[tuple[float, RunId]] = []
        self._resident: deque[RunId] = deque(maxlen=RESIDENT)
        for _ in range(n_runs):
            self._enter()
        for run_id in rng.sample(list(self._runs), n_waiting):
            self._ask(run_id)
        self._rolling = [r for r in self._rolling if self._runs[r[1]].stage is Stage.ROLLOUT]
        heapify(self._rolling)

    def view(self, *, anew: bool = False) -> DispatchView:
        """What the policy is told."""
        items, runs = self._waiting.values(), self._runs.values()
        return DispatchView(
            items=tuple(map(replace, items) if anew else items),
            runs=tuple(map(replace, runs) if anew else runs),
            resident=tuple(sorted(self._resident)),
        )

    def serve(self, plan: DispatchPlan) -> None:
        """Carry it out; until it is done, rollouts end."""
        assert plan.op_id is not None
        items = [self._waiting.pop(op_id) for op_id in (plan.op_id, *plan.along)]
        self.now += sum(item.est_s for item in items)
        while self._rolling and self._rolling[0][0] <= self.now:
            self._ask(heappop(self._rolling)[1])
        for item in items:
            run = self._runs[item.run_id]
            if self._rng.randrange(LASTS) == 0:
                del self._runs[run.run_id]
                self._enter()
                continue
            if run.run_id in self._resident:
                self._resident.remove(run.run_id)
            self._resident.append(run.run_id)
            served = run.served + item.est_s
            self._runs[run.run_id] = replace(
                run, stage=Stage.ROLLOUT, stage_since_s=self.now, step=run.step + 1, served=served
            )
            self._roll(run.run_id)
        if not self._waiting:
            self.now, run_id = heappop(self._rolling)
            self._ask(run_id)

    def _enter(self) -> None:
        run = RunView(
            run_id=RunId(f"run-{self._n}"),
            tenant_id=TenantId(f"tenant-{self._n % 40}"),
            order=self._n,
            weight=self._rng.choice((0.5, 1.0, 1.0, 2.0)),
            priority=self._rng.choice((0, 0, 0, 1)),
            stage=Stage.ROLLOUT,
            stage_since_s=self.now,
            step=0,
            served=0.0,
            kv_blocks=1,
            kv_blocks_worst=1,
        )
        self._n += 1
        self._runs[run.run_id] = run
        self._roll(run.run_id)

    def _roll(self, run_id: RunId) -> None:
        took_s = self._rng.expovariate(1.0 / self._rollout_s) if self._rollout_s else 0.0
        heappush(self._rolling, (self.now + took_s, run_id))

    def _ask(self, run_id: RunId) -> None:
        run = replace(self._runs[run_id], stage=Stage.WAIT_TRAIN, stage_since_s=self.now)
        self._runs[run_id] = run
        op_id = OpId(f"{run_id}/{run.step}")
        self._waiting[op_id] = WorkItem(
            op_id=op_id,
            run_id=run_id,
            kind="ForwardBackward",
            est_s=self._rng.uniform(0.2, 1.8) * MEAN_UPDATE_S,
            tokens=50_000,
            waiting_since_s=self.now,
            switch_s=1.0,
        )


def placements(
    n_jobs: int, n_devices: int, n_views: int, rng: random.Random, host_bytes: int = 2000 * GB
) -> Iterator[tuple[PlacementView, float, Callable[[PlacementPlan], None]]]:
    """Views of node groups of eight: all jobs come, then one ends and another comes each time. A
    job takes 300 GB of a group's ``host_bytes``."""
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

    facts = {group_id: _facts(group_id, (), host_bytes) for group_id in groups}
    for i in range(n_views + 1):
        if i > 0:
            ending = rng.choice([runs for runs in groups.values() if runs])
            ending.pop(0)
            run = _job(n_jobs + i, 10.0 * i, rng)
            waiting[run.run_id] = run
        for group_id, runs in groups.items():
            # As the cluster keeps them: made anew where something has changed.
            if facts[group_id].runs != tuple(runs):
                facts[group_id] = _facts(group_id, tuple(runs), host_bytes)
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


def _facts(group_id: GroupId, runs: tuple[PlacedRun, ...], host_bytes: int) -> GroupFacts:
    return GroupFacts(
        group_id=group_id,
        n_devices=GROUP_DEVICES,
        device_bytes=80 * GB,
        host_bytes=host_bytes,
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
