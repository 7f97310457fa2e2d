"""Multiplexed node group: all runs share all of its slices, divided by a co-location policy
(JigsawRL §4).

A run's step has a replica on each slice: rollout in buckets and tool waits, then reference and
training of its part. The policy is asked when a sub-stage ends or becomes ready; what it does not
name waits. What is still to come is told from the run's last step, as its sub-stages went then.

Invariants: shares of a slice add up to at most 1; cache and working memory stay within what the
resident weights and states leave. Left to others: the choice.
"""

from collections.abc import Callable

from plait.sim.jobs import Job
from plait.sim.schemes import Scheme
from plait.sim.spec import DeviceGroup, JobSpec
from plait.sim.world import World


class MuxGroup:
    def __init__(
        self,
        world: World,
        *,
        scheme: Scheme,
        group: DeviceGroup,
        tensor_parallel: int,
        ended: Callable[[Job], None],
    ) -> None:
        raise NotImplementedError

    def fits(self, spec: JobSpec) -> bool:
        raise NotImplementedError

    def enter(self, job: Job) -> None:
        raise NotImplementedError
