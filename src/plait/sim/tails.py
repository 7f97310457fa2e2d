"""Tails: what merging and balancing have to know about a run's replicas (JigsawRL §4.3).

T(k) is the time of a decode batch to its last row if nobody joins; M(k) that of computing the moved
samples' keys and values again. Left to others: whether anything moves (``policies.merging``), and
what a slowed-down worker gets (``policies.balancing``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from plait.core.ids import RunId
from plait.core.merging import MergeView, Tail
from plait.core.substages import Substage
from plait.sim.batch import Batch, Row
from plait.sim.engine import HEADROOM_STEPS
from plait.sim.replica import Replica
from plait.sim.worker import SlowdownModel, Worker

BESIDE_TAIL = 0.75
"""Compute of an update beside a tail: what the smallest part for the other leaves
(``policies.board.SPLITS``)."""


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
