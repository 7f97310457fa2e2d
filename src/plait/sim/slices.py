"""Slices: workers made for a model, with what must lie on them.

Invariants: weights, states and cache are reserved before anything runs; a model or a sample that
can never fit is refused when the simulation is set up. Left to others: who uses them.
"""

from plait.core.errors import ConfigError
from plait.sim.costs.protocol import Costs
from plait.sim.engine import Engine
from plait.sim.longest import longest_sample
from plait.sim.spec import JobSpec
from plait.sim.worker import Worker
from plait.sim.world import World


def hold_weights(worker: Worker, what: str, costs: Costs, model: str) -> None:
    """Keep a copy of the model on the slice; ConfigError if it does not fit."""
    if costs.weight_bytes > worker.free_bytes:
        raise ConfigError(
            f"{model} needs {costs.weight_bytes / 1e9:.0f} GB on {worker.worker_id}, which has "
            f"{worker.free_bytes / 1e9:.0f} GB free: raise tensor_parallel"
        )
    worker.reserve(what, costs.weight_bytes)


def make_engine(
    world: World,
    worker: Worker,
    costs: Costs,
    *,
    name: str = "rollout",
    spare_bytes: int = 0,
    owner: str = "",
    buckets: bool = False,
) -> Engine:
    """A rollout engine with all memory of the worker but ``spare_bytes`` as its cache."""
    per_token = max(1, costs.kv_bytes_per_token)
    pool_tokens = max(0, worker.free_bytes - spare_bytes) // per_token
    asked = int(world.options.get("kv_tokens", 0))
    if asked:
        pool_tokens = min(pool_tokens, asked)
    worker.reserve(f"kv/{name}", pool_tokens * per_token)
    return Engine(
        name=name,
        worker=worker,
        costs=costs,
        pool_tokens=pool_tokens,
        exact=world.exact,
        now=world.now,
        owner=owner,
        buckets=buckets,
        most_rows=int(world.options.get("most_rows", 0)),
    )


def check_fits(spec: JobSpec, engine: Engine) -> None:
    """ConfigError if the job's longest sample can never be in the cache."""
    longest = longest_sample(spec)
    if longest >= engine.pool_tokens:
        raise ConfigError(
            f"job {spec.name}: a sample of {longest} tokens never fits the cache of "
            f"{engine.worker.worker_id} ({engine.pool_tokens} tokens): raise tensor_parallel or "
            "lower response.most"
        )
