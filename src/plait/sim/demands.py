"""Demands: what a placement policy is told of a run: times of its step, use of a node group, memory
and slack.

Before anything has run, times come from the cost model; a kind of job that has made a step is known
by that, and fitted anew at each. A run of an unknown kind has no demand (it runs cold) unless the
option ``estimated`` says that the model's is taken. Option ``misjudge``: whoever decides is told
wrong times. Left to others: where runs go (``placer``).
"""

from dataclasses import replace

from plait.core.ids import RunId, TenantId
from plait.core.placement import Demand, WaitingRun
from plait.sim.costs.protocol import Costs
from plait.sim.estimates import StepTimes, demand, period_s, step_times
from plait.sim.fleet import Rollout
from plait.sim.jobs import Job
from plait.sim.schemes import Scheme
from plait.sim.spec import DeviceGroup, JobSpec
from plait.sim.world import World

_Fit = tuple[JobSpec, StepTimes, int]
"""Whose step it was, its times, and the devices that were shared."""


class Demands:
    """Of all runs that are placed."""

    def __init__(self, world: World, scheme: Scheme) -> None:
        self._world = world
        self._mux = scheme.full == "multiplexed"
        self._on_hosts = scheme.full != "isolated"
        """States lie in hosts' memory while others use the devices."""
        self._fits: dict[JobSpec, _Fit] = {}
        self._kinds: dict[RunId, JobSpec] = {}
        self._times: dict[RunId, StepTimes] = {}

    def waiting(self, job: Job, group: DeviceGroup, *, n_devices: int, n_shared: int) -> WaitingRun:
        """A run that has arrived. ``group``: one of those that it may get; ``n_devices``: that it
        needs of it; ``n_shared``: that its runs share."""
        spec = job.spec
        n_train = n_slices(spec)
        train = self.costs(spec, group, n_train)
        n_roll = (spec.rollout_devices or spec.train_devices) // spec.tensor_parallel
        times = step_times(
            spec,
            roll=self.costs(spec, group, 1),
            n_roll=max(1, n_roll),
            train=train,
            n_train=n_train,
            seed=self._world.seed,
        )
        self._times[job.run_id] = times
        job.alone_s = times.step_s
        factor = self._world.misjudged(job)
        kind = self._kinds[job.run_id] = _kind(spec)
        fit = self._fits.get(kind)
        known = None if fit is None else self._demand(*fit)
        if known is None and self._world.options.get("estimated"):
            known = self._demand(spec, _scaled(times, factor), n_shared)
        state = train.weight_bytes + train.train_bytes * n_train
        return WaitingRun(
            run_id=job.run_id,
            tenant_id=TenantId(spec.tenant),
            order=job.order,
            since_s=self._world.now(),
            n_devices=n_devices,
            device_bytes=self._slice_bytes(spec, train) // spec.tensor_parallel,
            host_bytes=state if self._on_hosts else 0,
            slack_s=spec.slack * times.step_s * factor,
            demand=known,
            weight=spec.weight,
            priority=spec.priority,
            expected_s=spec.steps * times.step_s * factor,
        )

    def stepped(self, job: Job, rollout: Rollout | None, n_shared: int) -> float:
        """A step is done, and tells of all runs of its kind; the period of the demand. ``rollout``:
        on devices of its own, where it went as it does alone."""
        times = self._times[job.run_id]
        if rollout is not None:
            times = replace(times, rollout_s=rollout.ended_s - rollout.began_s)
        self._fits[self._kinds[job.run_id]] = (job.spec, times, n_shared)
        return period_s(times)

    def fitted(self, job: Job) -> Demand:
        """As its kind's last step was."""
        return self._demand(*self._fits[self._kinds[job.run_id]])

    def costs(self, spec: JobSpec, group: DeviceGroup, replicas: int) -> Costs:
        """Of the job on a slice of the group."""
        return self._world.costs(
            spec.model,
            group.device,
            spec.tensor_parallel,
            weights=spec.weights,
            replicas=replicas,
        )

    def _demand(self, spec: JobSpec, times: StepTimes, n_shared: int) -> Demand:
        part = spec.train_devices / n_shared
        return demand(times, part=min(1.0, part), on_rollout=part if self._mux else 0.0)

    def _slice_bytes(self, spec: JobSpec, train: Costs) -> int:
        """Of one slice while the run uses it: a copy to roll out with and, apart from it or beside
        it, the state, with which sharded weights lie where training has slices of its own."""
        if spec.rollout_devices and not self._mux:
            sharded = train.train_bytes + -(-train.weight_bytes // n_slices(spec))
            return max(train.weight_bytes, sharded)
        return train.weight_bytes + train.train_bytes


def n_slices(spec: JobSpec) -> int:
    """Copies of the model that train together."""
    return max(1, spec.train_devices // spec.tensor_parallel)


def _scaled(times: StepTimes, factor: float) -> StepTimes:
    return StepTimes(
        rollout_s=times.rollout_s * factor,
        reward_s=times.reward_s * factor,
        update_s=times.update_s * factor,
    )


def _kind(spec: JobSpec) -> JobSpec:
    """What jobs with the same demand have in common."""
    return replace(
        spec, name="", steps=0, arrival_s=0.0, weight=1.0, priority=0, tenant="", slack=0.0, seed=0
    )
