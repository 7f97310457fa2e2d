"""Lodging: what weights, optimizers and caches of the runs on a shared node group need, and whether
another run's have room beside them.

Invariant: whoever is let in leaves everybody what it needs at least: a cache for its longest sample
where it rolls out, its optimizer, in turns, where it trains. Left to others: letting in (``mux``),
dividing what is left (``room``).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from plait.core.errors import ConfigError
from plait.core.ids import RunId
from plait.sim.costs.protocol import Costs
from plait.sim.jobs import Job
from plait.sim.longest import longest_sample
from plait.sim.room import room, states
from plait.sim.schemes import Scheme
from plait.sim.spec import JobSpec
from plait.sim.worker import Worker
from plait.sim.world import World

if TYPE_CHECKING:
    from plait.sim.tenant import Tenant

CACHE_SHARE = 0.5
"""Of a slice's memory beside the weights that must be left to caches: with less, optimizers take
turns on the slice."""


class Lodging:
    """Of one node group."""

    def __init__(
        self,
        world: World,
        scheme: Scheme,
        device: str,
        workers: list[Worker],
        tenants: Mapping[RunId, "Tenant"],
    ) -> None:
        """``tenants``: the runs that are here."""
        self._world, self._scheme = world, scheme
        self.device, self.workers, self._tenants = device, workers, tenants
        self.entering: list[Job] = []
        """Bound here, until caches have given way to their weights."""

    def fits(self, job: Job) -> bool:
        """Its weights have room beside those that are here, and beside all weights each run can
        have, in turns, a cache for its longest sample and its optimizer."""
        spec, costs = job.spec, self.costs(job.spec)
        entering = sum(self.costs(other.spec).weight_bytes for other in self.entering)
        fits = all(
            costs.weight_bytes + self.least_bytes(job, i)
            <= room(worker) + states(worker) - entering
            for i, worker in enumerate(self.workers)
        )
        if not fits and not self._tenants and not self.entering:
            raise ConfigError(
                f"job {spec.name}: {spec.model} does not fit {self.workers[0].worker_id} even "
                "alone: raise tensor_parallel"
            )
        return fits

    def least_bytes(self, job: Job, i: int, *, as_now: bool = False) -> int:
        """That must be left on slice ``i`` for whoever needs most, with ``job`` here: a cache where
        it rolls out, an optimizer where it trains. ``as_now``: optimizers that stay need no more
        than they have."""
        least = 0
        for other in (job, *self.entering, *(t.job for t in self._tenants.values())):
            costs = self.costs(other.spec)
            rolling, training = self.places(other.spec, other.order)
            if i in rolling:
                least = max(least, (longest_sample(other.spec) + 1) * costs.kv_bytes_per_token)
            if i in training and (not as_now or self._offloads(other)):
                least = max(least, costs.train_bytes)
        return least

    def _offloads(self, job: Job) -> bool:
        tenant = self._tenants.get(job.run_id)
        return tenant is not None and tenant.offloads

    def costs(self, spec: JobSpec) -> Costs:
        """Of a run here, whose optimizer is divided over the slices that it trains on."""
        return self._world.costs(
            spec.model,
            self.device,
            self.workers[0].n_devices,
            weights=spec.weights,
            replicas=len(self.places(spec, 0)[1]),
        )

    def places(self, spec: JobSpec, order: int) -> tuple[range, range]:
        """Slices that it rolls out on and those that it trains on: all, or apart where it has
        devices for both."""
        n = len(self.workers)
        n_roll = spec.rollout_devices // self.workers[0].n_devices
        if not 0 < n_roll < n:
            return range(n), range(n)
        if self._scheme.halves == "swapped" and order % 2:
            return range(n - n_roll, n), range(n - n_roll)
        return range(n_roll), range(n_roll, n)

    def keeps_state(self, job: Job, n_bytes: int, places: range) -> bool:
        """The optimizer of a newcomer, whose weights are here, may stay on these slices: caches
        keep their part of the memory, and everybody what it needs at least."""
        for i in places:
            worker, left = self.workers[i], room(self.workers[i]) - n_bytes
            share = CACHE_SHARE * (room(worker) + states(worker))
            least = self.least_bytes(job, i, as_now=True)
            if worker.free_bytes < n_bytes or left < max(share, least):
                return False
        return True
