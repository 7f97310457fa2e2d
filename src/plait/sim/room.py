"""Room: memory of a slice that runs share, beside what is resident there.

Weights and optimizers that stay are resident; caches, and optimizers that come for an update, take
what is left. A cache that does not run gives way to what is to start, and in the end all but what a
rollout needs at least.

Invariants: nothing that runs loses its cache; whatever is given was free. Left to others: who is
given what (``mux``).
"""

from collections.abc import Iterable, Sequence

from plait.sim.replica import Replica
from plait.sim.worker import Worker

PASSING = ("kv/", "load/")


def room(worker: Worker) -> int:
    """Memory beside what is resident."""
    fixed = [n for what, n in worker.reserved.items() if not what.startswith(PASSING)]
    return worker.memory_bytes - sum(fixed)


def states(worker: Worker) -> int:
    """Of optimizers that stay."""
    return sum(n for what, n in worker.reserved.items() if what.startswith("state/"))


def held(replica: Replica) -> int:
    """By a run's cache, and by its optimizer that has come for an update."""
    reserved, run_id = replica.worker.reserved, replica.run_id
    return reserved.get(f"kv/{run_id}", 0) + reserved.get(f"load/{run_id}", 0)


def shrink(replica: Replica) -> None:
    """A rollout that does not run keeps only the caches of samples that wait."""
    engine = replica.engine
    n_bytes = engine.idle.n_tokens * engine.costs.kv_bytes_per_token
    if held(replica) > n_bytes:
        engine.pool_tokens = engine.idle.n_tokens
        replica.worker.reserve(f"kv/{replica.run_id}", n_bytes)


def drop(replica: Replica) -> None:
    """Its cache is gone."""
    replica.engine.pool_tokens = 0
    replica.engine.idle.forget()
    replica.worker.release(f"kv/{replica.run_id}")


def free(worker: Worker, here: Sequence[Replica], n_bytes: int) -> bool:
    """Caches of what waits go, those of what runs shrink, until so much is free; whether it is."""
    for replica in here:
        if worker.free_bytes < n_bytes and not replica.running:
            drop(replica)
    for replica in here:
        engine, has = replica.engine, held(replica)
        rolls = replica.running and replica.kind is not None and replica.kind.rolls_out
        gives = min(n_bytes - worker.free_bytes, has - replica.least_bytes)
        if rolls and gives > 0:
            worker.reserve(f"kv/{replica.run_id}", has - gives)
            engine.pool_tokens = (has - gives) // max(1, engine.costs.kv_bytes_per_token)
            engine.release()
    return worker.free_bytes >= n_bytes


def make_room(
    worker: Worker, here: Sequence[Replica], starting: Iterable[tuple[Replica, int]]
) -> None:
    """Caches of rollouts that do not run give way to those that are ``starting``, with their
    bytes."""
    starting = list(starting)
    begin = {id(replica) for replica, _ in starting}
    needed = sum(n_bytes for _, n_bytes in starting)
    needed += sum(held(r) for r in here if r.running)
    kept = [r for r in here if not r.running and id(r) not in begin]
    for replica in kept:
        if needed + sum(held(r) for r in kept) > room(worker):
            drop(replica)
