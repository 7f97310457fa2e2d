"""Tenant: one run on a node group that it shares: a replica of its step on each slice.

It rolls out on all slices and trains on all, or on different ones where it has devices for both.
Weights are resident on each; the optimizer too, if caches keep their part of the memory, else it
comes for an update and goes.

Left to others: what runs when (``mux``), what a replica is doing (``replica``).
"""

from typing import TYPE_CHECKING

from plait.core.substages import Kind
from plait.sim.engine import Engine
from plait.sim.fleet import Fleet, Rollout
from plait.sim.jobs import Job
from plait.sim.longest import longest_sample
from plait.sim.replica import Replica
from plait.sim.stretch import Phase
from plait.sim.world import World

if TYPE_CHECKING:
    from plait.sim.mux import MuxGroup


class Tenant:
    """One run on the group's slices."""

    def __init__(self, group: "MuxGroup", world: World, job: Job) -> None:
        spec = job.spec
        self._group, self._world, self.job = group, world, job
        rolling, training = group.lodging.places(spec, job.order)
        self.costs = group.lodging.costs(spec)
        self.rollouts: list[Rollout] = []
        """Under way, oldest first."""
        self.reward_until_s = 0.0
        self._left = 0
        self.replicas: list[Replica] = []
        for worker in group.workers:
            worker.reserve(f"weights/{job.run_id}", self.costs.weight_bytes)
        self.offloads = not group.lodging.keeps_state(job, self.costs.train_bytes, training)
        for i, worker in enumerate(group.workers):
            if not self.offloads and i in training:
                worker.reserve(f"state/{job.run_id}", self.costs.train_bytes)
            engine = Engine(
                name=f"rollout/{job.run_id}",
                worker=worker,
                costs=self.costs,
                pool_tokens=0,
                exact=world.exact,
                now=world.now,
                owner=job.run_id,
                buckets=True,
            )
            engine.held_back = True
            engine.on_change = group.changed
            if group.merges:
                engine.on_tail = group.tail
            self.replicas.append(
                Replica(
                    run_id=job.run_id,
                    place=i,
                    engine=engine,
                    costs=self.costs,
                    least_tokens=longest_sample(spec) + 1,
                    misjudged=world.misjudged(job),
                    now=world.now,
                )
            )
        self.rollers = [self.replicas[i] for i in rolling]
        self.trainers = [self.replicas[i] for i in training]
        self._fleet = Fleet([r.engine for r in self.rollers], world.heap)

    @property
    def rollout(self) -> Rollout | None:
        """The oldest under way: the next that is trained on."""
        return self.rollouts[0] if self.rollouts else None

    @property
    def idle(self) -> bool:
        """Never where it trains on the same slices: the update is what comes next on them."""
        return self._fleet.idle and not set(self.rollers) & set(self.trainers)

    def want_rollout(self, job: Job) -> None:
        job.begin_rollout()

    def roll(self, job: Job, rollout: Rollout) -> None:
        self.rollouts.append(rollout)
        self._fleet.start(rollout, spec=job.spec, run=job.run_id, tools=job.tools)
        for replica in self.rollers:
            replica.begin(rollout)
        self._world.ask(self._group.decide)

    def left_rollout(self, job: Job, rollout: Rollout) -> None:
        self.reward_until_s = self._world.now() + job.spec.reward_s
        self.rollouts.remove(rollout)
        for replica in self.replicas:
            replica.left(rollout)
        self._world.ask(self._group.decide)

    def want_update(self, job: Job, rollout: Rollout) -> None:
        self._left = len(self.trainers)
        parts = self._group.balanced(self, rollout)
        for replica, part in zip(self.trainers, parts, strict=True):
            replica.phases = self.update(rollout, part)
        self._world.ask(self._group.decide)

    def ended(self, job: Job) -> None:
        self._group.leave(self)

    def update(self, rollout: Rollout, samples: int | None = None) -> list[Phase]:
        """Of a slice's part of a batch: ``samples`` of it, an equal part by default."""
        n_samples = rollout.draw.n_samples
        if samples is None:
            samples = -(-n_samples // len(self.trainers))
        tokens = -(-rollout.draw.total_tokens(self.job.spec.samples) * samples // n_samples)
        costs = self.costs
        phases = []
        if self.job.spec.reference:
            seconds = costs.reference_s(tokens, samples)
            flops = costs.flops(tokens)
            phases.append(self._phase(Kind.REFERENCE, seconds, flops, 0, samples, tokens))
        moved_s = costs.load_s() + costs.offload_s() if self.offloads else 0.0
        seconds = costs.train_s(tokens, samples) + costs.sync_s() + moved_s
        state = costs.train_bytes if self.offloads else 0
        flops = costs.flops(tokens, tokens)
        phases.append(self._phase(Kind.TRAIN, seconds, flops, state, samples, tokens))
        return phases

    def phase_done(self, replica: Replica) -> None:
        """One slice has done a phase of the update."""
        kind = replica.phases[0].kind
        replica.next_phase()
        if replica.phases:
            return
        assert kind is Kind.TRAIN
        if self.offloads:
            moved_s = self.costs.load_s() + self.costs.offload_s()
            self._world.record.switch_s += moved_s * replica.worker.n_devices
        self._left -= 1
        if self._left == 0:
            self.job.served(0.0)
            self._group.committed(self.job)
            self.job.committed()

    def _phase(
        self, kind: Kind, seconds: float, flops: float, state: int, samples: int, tokens: int
    ) -> Phase:
        return Phase(
            kind=kind,
            seconds=seconds,
            flops=flops,
            memory_bytes=state,
            n_samples=samples,
            tokens=tokens,
        )
