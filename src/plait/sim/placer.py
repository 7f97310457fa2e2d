"""Placer: the node groups, who is on them, and who waits for one, as a placement policy decides.

A binding that the group's free devices do not allow is not applied, whatever the policy says: the
run waits on. Policies are told a group's devices less those that are taken for good, so that one
which looks at ``n_devices`` never asks for too many.

Invariants: a device has one private owner at most; a run keeps its group until it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from plait.core.ids import RunId, TenantId
from plait.core.placement import (
    Demand,
    GroupFacts,
    GroupId,
    PlacedRun,
    PlacementView,
    WaitingRun,
)
from plait.core.plan import Wait
from plait.policies.protocol import State
from plait.sim.costs.protocol import Costs
from plait.sim.estimates import StepTimes, demand, step_times
from plait.sim.fleet import Rollout
from plait.sim.full import Plot
from plait.sim.jobs import Job
from plait.sim.mux import MuxGroup
from plait.sim.schemes import Scheme
from plait.sim.spec import DeviceGroup, JobSpec
from plait.sim.trainer import Trainer
from plait.sim.worker import Division, Worker
from plait.sim.world import World

REFIT = 0.1
"""Relative change of a run's period from which policies are told its new demand: lengths vary by
some percent between steps, and a group's cycle is not worth computing again for that."""


@dataclass(slots=True, kw_only=True, eq=False)
class NodeGroup:
    """One node group's state."""

    spec: DeviceGroup
    free: list[int]
    """Devices without an owner, lowest last."""
    bound: dict[RunId, PlacedRun] = field(default_factory=dict)
    trainer: Trainer | None = None
    pool: list[int] = field(default_factory=list)
    """Devices of the shared trainer."""
    mux: MuxGroup | None = None
    facts: GroupFacts | None = None
    """As last told; ``None`` after a change."""

    @property
    def group_id(self) -> GroupId:
        return GroupId(self.spec.name)


class Placer:
    """Placement, applied."""

    def __init__(
        self, world: World, scheme: Scheme, groups: Sequence[DeviceGroup], specs: Sequence[JobSpec]
    ) -> None:
        """``specs``: all jobs that are to be placed here."""
        self._world, self._scheme = world, scheme
        self._tensor_parallel = max(spec.tensor_parallel for spec in specs)
        self._device_bytes = {
            group.device: world.costs(specs[0].model, group.device, 1).memory_bytes
            for group in groups
        }
        self._groups = {
            GroupId(spec.name): NodeGroup(spec=spec, free=list(range(spec.n_devices - 1, -1, -1)))
            for spec in groups
        }
        self._waiting: dict[RunId, Job] = {}
        self._views: dict[RunId, WaitingRun] = {}
        self._views_bound: dict[RunId, WaitingRun] = {}
        self._devices: dict[RunId, list[int]] = {}
        self._home: dict[RunId, NodeGroup] = {}
        self._known: dict[JobSpec, Demand] = {}
        self._times: dict[RunId, StepTimes] = {}
        self._state: State = {}
        self._shared = scheme.full == "shared-train"
        self._mux = scheme.full == "multiplexed"

    def enter(self, job: Job) -> None:
        """A job has arrived."""
        self._waiting[job.run_id] = job
        self._views[job.run_id] = self._waiting_run(job)
        self._world.ask(self.decide)

    def cancel(self, job: Job) -> None:
        """A job that waits has been cancelled."""
        self._waiting.pop(job.run_id, None)
        self._views.pop(job.run_id, None)

    def decide(self) -> None:
        """Ask the policy and apply its plan."""
        if not self._waiting:
            return
        view = PlacementView(
            groups=tuple(self._facts(group) for group in self._groups.values()),
            waiting=tuple(self._views.values()),
        )
        before, policy = self._state, self._scheme.placement
        plan, self._state = policy.decide(view, before, self._world.now())
        self._world.record.decision("placement", policy, view, before, plan)
        for wait in plan.waits:
            if wait.run_id in self._waiting:
                self._waiting[wait.run_id].waits(wait)
        for binding in plan.bind:
            job, group = self._waiting.get(binding.run_id), self._groups[binding.group_id]
            if job is None:
                continue
            if not self._fits(job.spec, group):
                detail = f"{group.group_id} has {len(group.free)} devices free"
                job.waits(Wait(run_id=job.run_id, reason="devices", detail=detail))
                continue
            del self._waiting[job.run_id]
            self._views_bound[job.run_id] = self._views.pop(job.run_id)
            self._bind(job, group, binding.phase_s)

    def _fits(self, spec: JobSpec, group: NodeGroup) -> bool:
        if self._mux:
            return self._mux_group(group).fits(spec)
        if group.trainer is not None and spec.train_devices > len(group.pool):
            return False
        return self._needed(spec, group) <= len(group.free)

    def _needed(self, spec: JobSpec, group: NodeGroup) -> int:
        """Devices that the run would take from the free ones."""
        if self._shared and group.trainer is not None:
            return spec.rollout_devices
        return spec.rollout_devices + spec.train_devices

    def _facts(self, group: NodeGroup) -> GroupFacts:
        if group.facts is None:
            spec = group.spec
            n = spec.n_devices if self._mux else len(group.free) + len(group.pool)
            runs = tuple(group.bound.values()) if self._shared or self._mux else ()
            group.facts = GroupFacts(
                group_id=group.group_id,
                n_devices=n,
                device_bytes=self._device_bytes[spec.device],
                host_bytes=spec.host_bytes,
                runs=runs,
            )
        return group.facts

    def _waiting_run(self, job: Job) -> WaitingRun:
        spec = job.spec
        group = next(iter(self._groups.values()))
        n_train = max(1, spec.train_devices // spec.tensor_parallel)
        train = self._costs(spec, group, n_train)
        n_roll = (spec.rollout_devices or spec.train_devices) // spec.tensor_parallel
        times = step_times(
            spec,
            roll=self._costs(spec, group, 1),
            n_roll=max(1, n_roll),
            train=train,
            n_train=n_train,
            seed=self._world.seed,
        )
        self._times[job.run_id] = times
        job.alone_s = times.step_s
        factor = self._world.misjudged(job)
        state = train.weight_bytes + train.train_bytes * n_train
        return WaitingRun(
            run_id=job.run_id,
            tenant_id=TenantId(spec.tenant),
            order=job.order,
            since_s=self._world.now(),
            n_devices=spec.rollout_devices + spec.train_devices,
            device_bytes=(train.weight_bytes + train.train_bytes) // spec.tensor_parallel,
            host_bytes=state if self._shared or self._mux else 0,
            slack_s=spec.slack * times.step_s * factor,
            demand=self._known.get(_kind(spec)),
            weight=spec.weight,
            priority=spec.priority,
            expected_s=spec.steps * times.step_s * factor,
        )

    def _bind(self, job: Job, group: NodeGroup, phase_s: float) -> None:
        view = self._placed(job, group, phase_s)
        group.bound[job.run_id] = view
        group.facts = None
        if self._mux:
            self._mux_group(group).enter(job)
            return
        spec, tp = job.spec, job.spec.tensor_parallel
        shared = self._shared
        taken = [group.free.pop() for _ in range(self._needed(spec, group))]
        self._devices[job.run_id] = taken
        roll_devices = taken[: spec.rollout_devices]
        if group.trainer is not None and shared:
            trainer = group.trainer
        else:
            train_devices = taken[spec.rollout_devices :]
            division: Division = "share" if spec.rollout_devices else "pause"
            trainer = Trainer(
                name="train" if shared else f"train/{job.run_id}",
                workers=self._slices(spec, group, train_devices, division),
                policy=self._scheme.dispatch if shared else self._scheme.sharing.dispatch,
                heap=self._world.heap,
                record=self._world.record,
                ask=self._world.ask,
                estimate=self._world.misjudged,
            )
            if shared:
                group.trainer, group.pool = trainer, train_devices
                self._devices[job.run_id] = roll_devices
        roll = self._slices(spec, group, roll_devices, "share") or trainer.workers
        plot = Plot(
            self._world,
            job=job,
            roll=roll,
            trainer=trainer,
            roll_costs=self._costs(spec, group, 1),
            train_costs=self._costs(spec, group, len(trainer.workers)),
            begin_s=self._world.now() + self._phase_wait_s(view),
            committed=self._committed,
            ended=self._ended,
        )
        assert all(worker.n_devices == tp for worker in roll)
        plot.begin()

    def _ended(self, job: Job) -> None:
        """Its devices are free again."""
        group = self._home[job.run_id]
        del group.bound[job.run_id]
        group.free += self._devices.pop(job.run_id, [])
        if not group.bound and group.trainer is not None:
            group.free += group.pool
            group.trainer, group.pool = None, []
        group.free.sort(reverse=True)
        group.facts = None
        self._world.ask(self.decide)

    def _committed(self, job: Job, rollout: Rollout) -> None:
        """A step is done, so its demand is known; it is fitted anew at each."""
        group = self._home[job.run_id]
        times = replace(self._times[job.run_id], rollout_s=rollout.ended_s - rollout.began_s)
        fitted = self._demand(job, times, group)
        known = group.bound[job.run_id].demand
        self._known[_kind(job.spec)] = fitted
        if known is None or abs(known.period_s - fitted.period_s) > REFIT * known.period_s:
            group.bound[job.run_id] = replace(group.bound[job.run_id], demand=fitted)
            group.facts = None
            if self._waiting and known is None:
                self._world.ask(self.decide)

    def _placed(self, job: Job, group: NodeGroup, phase_s: float) -> PlacedRun:
        self._home[job.run_id] = group
        waiting = self._views_bound.pop(job.run_id)
        return PlacedRun(
            run_id=job.run_id,
            demand=waiting.demand,
            phase_s=phase_s,
            host_bytes=waiting.host_bytes,
            slack_s=waiting.slack_s,
        )

    def _phase_wait_s(self, placed: PlacedRun) -> float:
        """Until its place in the group's cycle comes; one that runs cold begins at once."""
        if placed.demand is None or not self._shared:
            return 0.0
        return (placed.phase_s - self._world.now()) % placed.demand.period_s

    def _demand(self, job: Job, times: StepTimes, group: NodeGroup) -> Demand:
        n = group.spec.n_devices
        part = job.spec.train_devices / n
        if self._shared and group.trainer is not None:
            part = 1.0
        return demand(times, part=min(1.0, part), on_rollout=part if self._mux else 0.0)

    def _mux_group(self, group: NodeGroup) -> MuxGroup:
        if group.mux is None:
            group.mux = MuxGroup(
                self._world,
                scheme=self._scheme,
                group=group.spec,
                tensor_parallel=self._tensor_parallel,
                ended=self._ended,
            )
        return group.mux

    def _slices(
        self, spec: JobSpec, group: NodeGroup, devices: list[int], division: Division
    ) -> list[Worker]:
        tp = spec.tensor_parallel
        memory = self._costs(spec, group, 1).memory_bytes
        return [
            self._world.worker(f"{group.spec.name}/{devices[i]}", tp, memory, division)
            for i in range(0, len(devices), tp)
        ]

    def _costs(self, spec: JobSpec, group: NodeGroup, replicas: int) -> Costs:
        return self._world.costs(
            spec.model,
            group.spec.device,
            spec.tensor_parallel,
            weights=spec.weights,
            replicas=replicas,
        )


def _kind(spec: JobSpec) -> JobSpec:
    """What jobs with the same demand have in common."""
    return replace(
        spec, name="", steps=0, arrival_s=0.0, weight=1.0, priority=0, tenant="", slack=0.0, seed=0
    )
