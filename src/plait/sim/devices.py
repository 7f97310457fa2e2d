"""Devices: which of a node group's devices each run has for itself, and where those come from that
it rolls out on.

Invariants: a device has one private owner at most; what was taken is given back whole, and a pool
that runs share when the last of them ends. Left to others: which group a run gets (``placer``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.core.ids import RunId
from plait.core.placement import GroupId
from plait.sim.jobs import Job
from plait.sim.node_group import NodeGroup
from plait.sim.spec import JobSpec
from plait.sim.world import World

Taken = list[tuple[str, int]]
"""Devices by group and number."""


@dataclass(slots=True, kw_only=True)
class Private:
    """Devices that one run has for itself."""

    roll: Taken = field(default_factory=list)
    train: Taken = field(default_factory=list)


class Devices:
    """Of all node groups."""

    def __init__(
        self,
        world: World,
        groups: Mapping[GroupId, NodeGroup],
        apart: Sequence[NodeGroup],
        *,
        origin: str,
        shared: bool,
    ) -> None:
        """``apart``: groups that hold rollout devices alone; ``shared``: runs train on a pool of
        their group."""
        self._world, self._groups, self._apart = world, groups, apart
        self._origin, self._shared = origin, shared
        self._private: dict[RunId, Private] = {}
        self._brought_s: dict[RunId, float] = {}
        """Since when those are there that a run has brought along."""

    def needed(self, spec: JobSpec) -> int:
        """Of its node group."""
        return spec.train_devices + (spec.rollout_devices if self._origin == "group" else 0)

    def fit(self, spec: JobSpec, group: NodeGroup) -> bool:
        """There are enough for a run that is bound to the group."""
        roll = spec.rollout_devices if self._origin == "group" else 0
        if self._origin == "groups" and spec.rollout_devices > sum(
            len(g.free) for g in self._apart
        ):
            return False
        if self._shared and group.trainer is not None:
            return spec.train_devices <= len(group.pool) and roll <= len(group.free)
        return roll + spec.train_devices <= len(group.free)

    def take(self, job: Job, group: NodeGroup) -> Private:
        """For the job alone."""
        spec, taken = job.spec, Private()
        if self._origin == "brought":
            taken.roll = [(f"{job.run_id}", i) for i in range(spec.rollout_devices)]
            self._brought_s[job.run_id] = self._world.now()
        else:
            for _ in range(spec.rollout_devices):
                source = self._rollout_source(group)
                taken.roll.append((source.spec.name, source.free.pop()))
        if not self._shared:
            taken.train = [(group.spec.name, group.free.pop()) for _ in range(spec.train_devices)]
        self._private[job.run_id] = taken
        return taken

    def give_back(self, job: Job, group: NodeGroup) -> None:
        """The job is over."""
        taken = self._private.pop(job.run_id, Private())
        by_name = {g.spec.name: g for g in (*self._groups.values(), *self._apart)}
        if self._origin == "brought":
            since_s = self._brought_s.pop(job.run_id, self._world.now())
            n = job.spec.rollout_devices
            self._world.record.brought_device_s += n * (self._world.now() - since_s)
            taken.roll = []
        for name, device in (*taken.roll, *taken.train):
            by_name[name].free.append(device)
        if not group.bound and group.trainer is not None:
            group.free += group.pool
            group.trainer, group.pool = None, []
        group.free.sort(reverse=True)

    def _rollout_source(self, group: NodeGroup) -> NodeGroup:
        if self._origin == "group":
            return group
        return max(self._apart, key=lambda g: len(g.free))
