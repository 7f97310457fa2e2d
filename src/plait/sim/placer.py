"""Placer: the node groups, who is on them, and who waits for one, as a placement policy decides.

A binding that the group's free devices do not allow is not applied, whatever the policy says: the
run waits on. Policies are told a group's devices less those that are taken for good, so that one
which looks at ``n_devices`` never asks for too many.

Invariants: a run keeps its group until it ends. Left to others: whose devices are whose
(``devices``).
"""

from collections.abc import Sequence
from dataclasses import replace

from plait.core.errors import ConfigError
from plait.core.ids import RunId
from plait.core.placement import GroupFacts, GroupId, PlacedRun, PlacementView, WaitingRun
from plait.core.plan import Wait, reasons
from plait.policies.protocol import Dispatch, State
from plait.sim.demands import Demands, n_slices
from plait.sim.devices import Devices
from plait.sim.fleet import Rollout
from plait.sim.full import Plot
from plait.sim.jobs import Job
from plait.sim.mux import MuxGroup
from plait.sim.node_group import NodeGroup, empty
from plait.sim.schemes import Scheme
from plait.sim.spec import DeviceGroup, JobSpec
from plait.sim.trainer import Trainer
from plait.sim.worker import Division, Worker
from plait.sim.world import World

ROLLOUT = "rollout"
"""Node groups whose names begin so hold the runs' private rollout devices, and nothing else is
placed there. Without any they come from the run's own group, or are *brought* along (option
``rollout_from``): then they are there as long as the run, and no part of the cluster."""
REFIT = 0.1
"""Relative change of a run's period from which policies are told its new demand: lengths vary by
some percent between steps, and a group's cycle is not worth computing again for that."""


class Placer:
    """Placement, applied."""

    def __init__(
        self,
        world: World,
        scheme: Scheme,
        groups: Sequence[DeviceGroup],
        specs: Sequence[JobSpec],
        later: Sequence[DeviceGroup] = (),
    ) -> None:
        """``specs``: all jobs that are to be placed here. ``later``: groups that are to be
        opened."""
        self._world, self._scheme = world, scheme
        self._tensor_parallel = max(spec.tensor_parallel for spec in specs)
        self._device_bytes = {
            group.device: world.costs(specs[0].model, group.device, 1).memory_bytes
            for group in (*groups, *later)
        }
        self._kinds = [*groups, *later]
        states = [empty(spec) for spec in groups]
        apart = [g for g in states if g.spec.name.startswith(ROLLOUT)]
        self._origin = str(world.options.get("rollout_from", "groups" if apart else "group"))
        self._rollout_groups = apart if self._origin == "groups" else []
        self._groups = {g.group_id: g for g in states if g not in self._rollout_groups}
        self._shared = scheme.full == "shared-train"
        self._mux = scheme.full == "multiplexed"
        self._devices = Devices(
            world, self._groups, self._rollout_groups, origin=self._origin, shared=self._shared
        )
        self._check(specs)
        self._waiting: dict[RunId, Job] = {}
        self._views: dict[RunId, WaitingRun] = {}
        self._views_bound: dict[RunId, WaitingRun] = {}
        self._home: dict[RunId, NodeGroup] = {}
        self._demands = Demands(world, scheme)
        self._state: State = {}

    def open(self, group: DeviceGroup) -> None:
        """One more node group to place jobs on."""
        self._groups[GroupId(group.name)] = empty(group)
        self._world.ask(self.decide)

    def enter(self, job: Job) -> None:
        """A job has arrived."""
        self._waiting[job.run_id] = job
        group = next(kind for kind in self._kinds if not self._is_apart(kind))
        self._views[job.run_id] = self._demands.waiting(
            job, group, n_devices=self._devices.needed(job.spec), n_shared=self._n_shared(group)
        )
        self._world.ask(self.decide)

    def cancel(self, job: Job) -> None:
        """A job that waits has been cancelled."""
        self._waiting.pop(job.run_id, None)
        self._views.pop(job.run_id, None)
        if job.run_id in self._home:
            self._ended(job)

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
        for run_id, reason in reasons(plan.waits):
            if (waiting := self._waiting.get(run_id)) is not None:
                waiting.waits(Wait(run_id=run_id, reason=reason))
        for binding in plan.bind:
            job, group = self._waiting.get(binding.run_id), self._groups[binding.group_id]
            if job is None:
                continue
            if not self._fits(job, group):
                detail = f"{group.group_id} has {len(group.free)} devices free"
                job.waits(Wait(run_id=job.run_id, reason="devices", detail=detail))
                continue
            del self._waiting[job.run_id]
            self._views_bound[job.run_id] = self._views.pop(job.run_id)
            self._bind(job, group, binding.phase_s)
            if self._shared:
                # A pool that is shared has as many devices for the next as before.
                self._world.ask(self.decide)

    def _check(self, specs: Sequence[JobSpec]) -> None:
        """ConfigError for a job that no node group could hold even if it were empty."""
        kinds = [g for g in self._kinds if not self._is_apart(g)]
        largest = max((group.n_devices for group in kinds), default=0)
        rollout = sum(g.spec.n_devices for g in self._rollout_groups)
        for spec in specs:
            if self._shared and not spec.rollout_devices:
                raise ConfigError(
                    f"job {spec.name}: under {self._scheme.name} jobs share the devices that they "
                    "train on, and roll out on others: give it rollout_devices"
                )
            needed = self._devices.needed(spec)
            if needed > largest and not self._mux:
                raise ConfigError(
                    f"job {spec.name} needs {needed} devices of one node group, the "
                    f"largest has {largest}: lower train_devices or rollout_devices"
                )
            if self._origin == "groups" and spec.rollout_devices > rollout:
                raise ConfigError(
                    f"job {spec.name} needs {spec.rollout_devices} rollout devices, the rollout "
                    f"groups have {rollout}: lower rollout_devices"
                )

    def _is_apart(self, group: DeviceGroup) -> bool:
        """It holds private rollout devices, and nothing is placed there."""
        return any(group is apart.spec for apart in self._rollout_groups)

    def _fits(self, job: Job, group: NodeGroup) -> bool:
        return (
            self._mux_group(group).lodging.fits(job)
            if self._mux
            else self._devices.fit(job.spec, group)
        )

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

    def _bind(self, job: Job, group: NodeGroup, phase_s: float) -> None:
        view = self._placed(job, group, phase_s)
        group.bound[job.run_id] = view
        group.facts = None
        if self._mux:
            self._mux_group(group).enter(job)
            return
        spec = job.spec
        taken = self._devices.take(job, group)
        roll = self._slices(spec, taken.roll, "share")
        division: Division = "share" if spec.rollout_devices else "pause"
        if self._shared:
            trainer = self._pool(group, spec)
            train = trainer.part(spec)
        else:
            train = self._slices(spec, taken.train, division)
            trainer = self._trainer(f"train/{job.run_id}", train, self._scheme.sharing.dispatch)
        plot = Plot(
            self._world,
            job=job,
            roll=roll or train,
            trainer=trainer,
            train=train,
            private=not self._shared,
            roll_costs=self._demands.costs(spec, group.spec, 1),
            train_costs=self._demands.costs(spec, group.spec, n_slices(spec)),
            begin_s=self._world.now() + self._phase_wait_s(view),
            committed=self._committed,
            ended=self._ended,
        )
        plot.begin()

    def _pool(self, group: NodeGroup, spec: JobSpec) -> Trainer:
        """The group's trainer: all its devices, or as many as its first run trains on where rollout
        devices come from the same group."""
        if group.trainer is None:
            n = spec.train_devices if self._origin == "group" else len(group.free)
            group.pool = [group.free.pop() for _ in range(n)]
            width = self._tensor_parallel
            width = width if n % width == 0 else spec.tensor_parallel
            memory = self._device_bytes[group.spec.device]
            workers = [
                self._world.worker(f"{group.spec.name}/{group.pool[i]}", width, width * memory)
                for i in range(0, n - n % width, width)
            ]
            group.trainer = self._trainer("train", workers, self._scheme.dispatch)
        return group.trainer

    def _trainer(self, name: str, workers: list[Worker], policy: Dispatch) -> Trainer:
        return Trainer(
            name=name,
            workers=workers,
            policy=policy,
            heap=self._world.heap,
            record=self._world.record,
            ask=self._world.ask,
            estimate=self._world.misjudged,
        )

    def _ended(self, job: Job) -> None:
        """Its devices are free again."""
        group = self._home[job.run_id]
        del group.bound[job.run_id]
        self._devices.give_back(job, group)
        group.facts = None
        self._world.ask(self.decide)

    def _committed(self, job: Job, rollout: Rollout | None = None) -> None:
        """A step is done, so its demand is known; it is fitted anew at each."""
        group = self._home[job.run_id]
        period_s = self._demands.stepped(job, rollout, self._n_shared(group.spec))
        known = group.bound[job.run_id].demand
        if known is None or abs(known.period_s - period_s) > REFIT * known.period_s:
            fitted = self._demands.fitted(job)
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

    def _n_shared(self, group: DeviceGroup) -> int:
        """Devices of it that its runs share."""
        state = self._groups.get(GroupId(group.name))
        if self._shared and state is not None and state.pool:
            return len(state.pool)
        return group.n_devices

    def _mux_group(self, group: NodeGroup) -> MuxGroup:
        if group.mux is None:
            group.mux = MuxGroup(
                self._world,
                scheme=self._scheme,
                group=group.spec,
                tensor_parallel=self._tensor_parallel,
                device_bytes=self._device_bytes[group.spec.device],
                committed=self._committed,
                ended=self._ended,
            )
        return group.mux

    def _slices(
        self, spec: JobSpec, devices: list[tuple[str, int]], division: Division
    ) -> list[Worker]:
        tp = spec.tensor_parallel
        memory = next(iter(self._device_bytes.values())) * tp
        return [
            self._world.worker("/".join(map(str, devices[i])), tp, memory, division)
            for i in range(0, len(devices), tp)
        ]
