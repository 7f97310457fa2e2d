"""Tails: what merging and balancing have to know about a run's replicas (JigsawRL §4.3).

T(k) is the time of a decode batch to its last row if nobody joins; M(k) that of computing the moved
samples' keys and values again. Left to others: whether anything moves (``policies.merging``), and
what a slowed-down worker gets (``policies.balancing``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from plait.core.ids import RunId
from plait.core.merging import BalanceView, MergeView, Tail
from plait.core.substages import Kind, Substage
from plait.policies.protocol import State
from plait.sim.batch import BUCKETS, Batch
from plait.sim.entrance import HEADROOM_STEPS
from plait.sim.fleet import Rollout, merge
from plait.sim.replica import Replica
from plait.sim.row import Row
from plait.sim.schemes import Scheme
from plait.sim.tenant import Tenant
from plait.sim.worker import SlowdownModel, Worker
from plait.sim.world import World

BESIDE_TAIL = 0.75
"""Compute of an update beside a tail: what the smallest part for the other leaves
(``policies.board.SPLITS``)."""


class Tails:
    """The two policies of one node group, asked and obeyed."""

    def __init__(self, world: World, scheme: Scheme) -> None:
        self._world, self._scheme = world, scheme
        self._merge_state: State = {}
        self._balance_state: State = {}

    @property
    def merges(self) -> bool:
        return self._scheme.merging is not None

    def balance(self, tenant: Tenant, rollout: Rollout, tenants: Iterable[Tenant]) -> list[int]:
        """Samples of an update for each slice that the run trains on."""
        n, workers = rollout.draw.n_samples, [r.worker for r in tenant.trainers]
        policy = self._scheme.balancing
        if policy is None or len(workers) == 1:
            return [n // len(workers) + (i < n % len(workers)) for i in range(len(workers))]
        each = max(1, n // len(workers))
        whole, half = (tenant.update(rollout, k)[-1] for k in (each, max(1, each // 2)))
        per_s = (whole.seconds - half.seconds) / max(1, whole.n_samples - half.n_samples)
        own = tenant.trainers[0].coming([whole], ())[0]
        view = BalanceView(
            run_id=tenant.job.run_id,
            total=n,
            fixed_s=max(0.0, whole.seconds - per_s * whole.n_samples),
            per_sample_s=per_s,
            slowdowns=slowdowns(
                self._world.slowdown, own, workers, _beside(tenant, tenants, rolls_out=True)
            ),
            most=(n,) * len(workers),
        )
        before = self._balance_state
        plan, self._balance_state = policy.decide(view, before, self._world.now())
        self._world.record.decision("balancing", policy, view, before, plan)
        return list(plan.samples)

    def merge(self, tenants: Iterable[Tenant], free_bytes: Callable[[Replica], int]) -> bool:
        """Move tails as the policy says, each run's by itself; true if any has moved."""
        policy, moved = self._scheme.merging, False
        if policy is None:
            return False
        tenants = list(tenants)
        for tenant in tenants:
            rolling = [r for r in tenant.rollers if r.rolls_here]
            tails = [r for r in rolling if r.running and r.kind is Kind.DECODE]
            if len(tails) < 2 or len(tails) < len(rolling) or len(tenant.rollouts) > 1:
                continue  # an asynchronous run fills the places of its tails anew
            if sum(r.engine.load for r in tails) >= BUCKETS[0]:
                continue  # together they would no longer be a tail
            view = merge_view(tenant.job.run_id, tails, _beside(tenant, tenants), free_bytes)
            before = self._merge_state
            plan, self._merge_state = policy.decide(view, before, self._world.now())
            self._world.record.decision("merging", policy, view, before, plan)
            if plan.target is None:
                continue
            target = next(r for r in tails if r.worker.worker_id == plan.target)
            assert tenant.rollout is not None
            merge(tenant.rollout, [r.engine for r in tails if r is not target], target.engine)
            moved = True
        return moved


def merge_view(
    run_id: RunId,
    tails: Sequence[Replica],
    beside: Mapping[Worker, Substage],
    free_bytes: Callable[[Replica], int],
) -> MergeView:
    """The tails of one run, each decoding on its worker."""
    for replica in tails:
        replica.engine.release()  # brings its batch up to date
    together_s = alone_s(tails)
    return MergeView(
        run_id=run_id,
        tails=tuple(
            Tail(
                worker=replica.worker.worker_id,
                substage=replace(replica.substages()[0], work_s=alone_s([replica])),
                migrate_s=_migrate_s(replica),
                beside=beside.get(replica.worker),
            )
            for replica in tails
        ),
        merged_s=(together_s,) * len(tails),
        free_bytes=tuple(free_bytes(replica) for replica in tails),
        moved_bytes=tuple(_bytes(replica) for replica in tails),
    )


def alone_s(replicas: Sequence[Replica]) -> float:
    """Seconds until the last of their samples' turns ends, all on one worker that is free."""
    batch = Batch(replicas[0].engine.costs, exact=False)
    batch.join([row for replica in replicas for row in _rows(replica)])
    return sum(work_s for _, work_s, _ in batch.outlook())


def slowdowns(
    model: SlowdownModel,
    own: Substage,
    workers: Sequence[Worker],
    beside: Mapping[Worker, Substage],
) -> tuple[float, ...]:
    """Of an update on each worker, by what else runs there."""
    return tuple(
        model(own, beside[worker], BESIDE_TAIL, 1.0) if worker in beside else 1.0
        for worker in workers
    )


def _beside(
    tenant: Tenant, tenants: Iterable[Tenant], *, rolls_out: bool = False
) -> dict[Worker, Substage]:
    """What other runs have on each worker now; ``rolls_out``: rollouts only."""
    return {
        replica.worker: replica.substages()[0]
        for other in tenants
        if other is not tenant
        for replica in other.replicas
        if replica.running
        and replica.kind is not None
        and replica.kind.on_device
        and (replica.kind.rolls_out or not rolls_out)
    }


def _migrate_s(replica: Replica) -> float:
    rows = _rows(replica)
    tokens = sum(row.context for row in rows)
    return replica.engine.costs.prefill_s(tokens, n_samples=max(1, len(rows)))


def _bytes(replica: Replica) -> int:
    engine = replica.engine
    tokens = sum(row.context + row.left + HEADROOM_STEPS for row in _rows(replica))
    return tokens * engine.costs.kv_bytes_per_token


def _rows(replica: Replica) -> list[Row]:
    """Copies of what decodes on its worker or waits for it, as of now."""
    engine, out = replica.engine, []
    step = engine.batch.step
    for row in engine.batch.rows:
        left = max(1, round(row.end - step))
        out.append(Row(row.portion, row.sample, row.context + row.left - left, row.shared, left))
    for row in engine.waiting():
        again = Row(row.portion, row.sample, row.context, row.shared, row.left)
        again.compute = row.compute
        out.append(again)
    return out
