"""Multiplexed node group: all runs share all of its slices, divided by a co-location policy
(JigsawRL §4).

The policy is asked when a sub-stage ends or becomes ready; what it does not name waits. Its shares
of memory are cache (rollout) or the optimizer's place (training, where it does not fit beside);
weights stay resident, activations are part of each slice's reserve.

A plan that gives more memory than is free is applied as far as it goes, and what has less than it
needs at least waits.

Invariants: shares of a slice add up to at most 1; what is given stays within what the weights
leave; what runs is not stopped. Left to others: the choice, and what a replica is doing
(``replica``).
"""

from collections.abc import Callable
from functools import partial

from plait.core.colocation import ColocationPlan, ColocationView, Share, WorkerFacts
from plait.core.errors import ConfigError
from plait.core.ids import RunId
from plait.core.substages import Kind, Substage
from plait.policies.protocol import State
from plait.sim.engine import Engine
from plait.sim.fleet import Rollout, merge
from plait.sim.jobs import Job
from plait.sim.lodging import Lodging
from plait.sim.replica import Replica
from plait.sim.room import free, held, make_room, room, shrink
from plait.sim.schemes import Scheme
from plait.sim.spec import DeviceGroup
from plait.sim.tails import Tails
from plait.sim.tenant import Tenant
from plait.sim.worker import Fixed, Worker
from plait.sim.world import World


class MuxGroup:
    """A node group that all its runs share."""

    def __init__(
        self,
        world: World,
        *,
        scheme: Scheme,
        group: DeviceGroup,
        tensor_parallel: int,
        device_bytes: int,
        committed: Callable[[Job], None],
        ended: Callable[[Job], None],
    ) -> None:
        if group.n_devices % tensor_parallel:
            raise ConfigError(
                f"node group {group.name}: {group.n_devices} devices are no multiple of "
                f"tensor_parallel {tensor_parallel}"
            )
        self._world, self._scheme, self._policy = world, scheme, scheme.colocation
        self.device, self.committed, self._ended = group.device, committed, ended
        self.workers = [
            world.worker(
                f"{group.name}/{i}", tensor_parallel, tensor_parallel * device_bytes, "planned"
            )
            for i in range(group.n_devices // tensor_parallel)
        ]
        self._tenants: dict[RunId, Tenant] = {}
        self._state: State = {}
        self._tails = Tails(world, scheme)
        self.lodging = Lodging(world, scheme, group.device, self.workers, self._tenants)
        """Whether and how they have room here."""

    def enter(self, job: Job) -> None:
        """A run has been bound here."""
        self.lodging.entering.append(job)
        self._world.ask(self.decide)

    def leave(self, tenant: Tenant) -> None:
        """It is over."""
        run_id = tenant.job.run_id
        del self._tenants[run_id]
        for replica in tenant.replicas:
            if replica.fixed is not None:
                replica.worker.stop(replica.fixed.name)
            replica.worker.stop(replica.engine.name)
            for what in ("weights", "state", "kv", "load"):
                replica.worker.release(f"{what}/{run_id}")
        self._ended(tenant.job)
        self._world.ask(self.decide)

    def changed(self, engine: Engine) -> None:
        """A rollout has changed its kind, run out of rows, or has rows that wait."""
        self._world.ask(self.decide)

    def decide(self) -> None:
        """Ask the policy and apply its plan."""
        self._let_in()
        replicas: dict[str, Replica] = {}
        substages: list[Substage] = []
        for tenant in self._tenants.values():
            for replica in tenant.replicas:
                replica.refresh()
                if not replica.running:
                    shrink(replica)
                if replica.kind is not None:
                    replicas[replica.key] = replica
            substages += self._substages(tenant)
        if not any(s.kind.on_device and not s.after for s in substages):
            return

        def order(substage: Substage) -> tuple[bool, bool, float]:
            """Running, then ready ones as they became so, then what follows."""
            replica = replicas.get(substage.key)
            if replica is None:
                return bool(substage.after), True, 0.0
            return bool(substage.after), not replica.running, replica.since_s

        view = ColocationView(
            workers=tuple(
                WorkerFacts(worker_id=w.worker_id, memory_bytes=room(w)) for w in self.workers
            ),
            substages=tuple(sorted(substages, key=order)),
            running=tuple(key for key, r in replicas.items() if r.running or r.kind is Kind.TOOL),
            held_bytes={key: held(r) for key, r in replicas.items() if r.running},
            weights={run_id: t.job.spec.weight for run_id, t in self._tenants.items()},
        )
        before = self._state
        plan, self._state = self._policy.decide(view, before, self._world.now())
        self._world.record.decision("colocation", self._policy, view, before, plan)
        self._apply(plan, replicas)

    def balanced(self, tenant: Tenant, rollout: Rollout) -> list[int]:
        """Samples of an update for each slice that it trains on."""
        return self._tails.balance(tenant, rollout, self._tenants.values())

    @property
    def merges(self) -> bool:
        return self._tails.merges

    def tail(self) -> None:
        """Few rows of a run are left on a slice."""
        self._world.ask(self.merge)

    def merge(self) -> None:
        """Ask whether tails of one run move together; what has moved calls for a new decision."""
        if self._tails.merge(self._tenants.values(), self._free_bytes):
            self._world.ask(self.decide)

    def _free_bytes(self, replica: Replica) -> int:
        """Memory of its slice that nobody else holds."""
        return room(replica.worker) - sum(held(r) for r in self._here(replica.worker))

    def _substages(self, tenant: Tenant) -> list[Substage]:
        out: list[Substage] = []
        job, rollout = tenant.job, tenant.rollout
        ends: list[str] = []
        for replica in tenant.replicas:
            own = replica.substages()
            out += own
            if own and replica.rolls_here:
                ends.append(own[-1].key)
        now = self._world.now()
        waits_for_reward = rollout is None and tenant.reward_until_s > now
        if rollout is not None or waits_for_reward:
            if job.spec.reward_s > 0.0:
                key = f"{job.run_id}/{job.version}/reward"
                left_s = tenant.reward_until_s - now if waits_for_reward else job.spec.reward_s
                out.append(
                    Substage(
                        key=key,
                        run_id=job.run_id,
                        worker=self.workers[0].worker_id,
                        kind=Kind.REWARD,
                        work_s=left_s,
                        after=tuple(ends),
                    )
                )
                ends = [key]
            if rollout is not None:
                for replica in tenant.trainers:
                    out += replica.coming(tenant.update(rollout), tuple(ends))
        return out

    def _apply(self, plan: ColocationPlan, replicas: dict[str, Replica]) -> None:
        engines = {
            (run_id, r.worker.worker_id): r.engine
            for run_id, t in self._tenants.items()
            for r in t.replicas
        }
        for move in plan.merges:
            tenant = self._tenants[move.run_id]
            sources = [engines[move.run_id, worker] for worker in move.sources]
            for rollout in tenant.rollouts:
                merge(rollout, sources, engines[move.run_id, move.target])
        shares = [(replicas[s.key], s) for s in plan.shares if s.key in replicas]
        self._make_room(shares)
        for replica, share in shares:
            assert replica.kind is not None
            if not replica.kind.on_device:
                continue
            tenant = self._tenants[replica.run_id]
            if replica.kind.rolls_out:
                self._roll(replica, share.compute, share.memory_bytes)
            else:
                self._start_phase(tenant, replica, share.compute)
            tenant.job.served(0.0)
        for worker in self.workers:
            total = sum(activity.compute for activity in worker.running())
            assert total <= 1.0 + 1e-6, f"{worker.worker_id}: shares add up to {total}"
        for wait in plan.waits:
            tenant = self._tenants[wait.run_id]
            if not any(r.running for r in tenant.replicas):
                tenant.job.waits(wait)

    def _make_room(self, shares: list[tuple[Replica, Share]]) -> None:
        """For what is to start."""
        for worker in self.workers:
            starting = [
                (replica, share.memory_bytes)
                for replica, share in shares
                if replica.worker is worker
                and not replica.running
                and replica.kind
                and replica.kind.on_device
            ]
            make_room(worker, self._here(worker), starting)

    def _here(self, worker: Worker) -> list[Replica]:
        return [r for t in self._tenants.values() for r in t.replicas if r.worker is worker]

    def _let_in(self) -> None:
        """Runs whose weights find room, in order."""
        while self.lodging.entering:
            job = self.lodging.entering[0]
            costs = self.lodging.costs(job.spec)
            if not all(free(w, self._here(w), costs.weight_bytes) for w in self.workers):
                return
            if any(
                costs.weight_bytes + self.lodging.least_bytes(job, i) > room(worker)
                for i, worker in enumerate(self.workers)
            ):
                self._take_turns()
            self.lodging.entering.pop(0)
            if job.end is None:
                job.place = self._tenants[job.run_id] = Tenant(self, self._world, job)
                job.advance()

    def _take_turns(self) -> None:
        """Optimizers that have stayed give way: from now on they come for an update and go."""
        for tenant in self._tenants.values():
            if tenant.offloads:
                continue
            tenant.offloads = True
            run_id = tenant.job.run_id
            for replica in tenant.trainers:
                replica.worker.release(f"state/{run_id}")
                if replica.fixed is not None and replica.fixed.kind is Kind.TRAIN:
                    replica.worker.reserve(f"load/{run_id}", tenant.costs.train_bytes)

    def _roll(self, replica: Replica, compute: float, n_bytes: int) -> None:
        engine, worker = replica.engine, replica.worker
        engine.compute = compute
        has = held(replica)
        if replica.running:
            # What runs keeps its cache; it may have more of what is free.
            n_bytes = max(has, min(n_bytes, has + worker.free_bytes))
        elif min(n_bytes, has + worker.free_bytes) < replica.least_bytes:
            return
        else:
            n_bytes = min(n_bytes, has + worker.free_bytes)
        if n_bytes != has or not replica.running:
            worker.reserve(f"kv/{replica.run_id}", n_bytes)
            replica.running = True
            engine.held_back = False
            engine.pool_tokens = n_bytes // max(1, engine.costs.kv_bytes_per_token)
            engine.release()
        worker.changed()

    def _start_phase(self, tenant: Tenant, replica: Replica, compute: float) -> None:
        if replica.fixed is not None:
            replica.fixed.compute = compute
            replica.worker.changed()
            return
        phase = replica.phases[0]
        if phase.memory_bytes > replica.worker.free_bytes:
            return
        if phase.memory_bytes:
            replica.worker.reserve(f"load/{replica.run_id}", phase.memory_bytes)
        replica.running = True
        replica.fixed = Fixed(
            name=f"update/{replica.run_id}",
            substage=replica.substages()[0],
            seconds=phase.seconds,
            flops=phase.flops,
            compute=compute,
            done=partial(self._phase_done, tenant, replica),
        )
        replica.worker.start(replica.fixed)

    def _phase_done(self, tenant: Tenant, replica: Replica, fixed: Fixed) -> None:
        replica.worker.stop(fixed.name)
        replica.worker.release(f"load/{replica.run_id}")
        tenant.job.served(fixed.work_s * replica.worker.n_devices)
        tenant.phase_done(replica)
        self._world.ask(self.decide)
