"""C4: PlexRL (arXiv 2605.20863) — device time per step on shared pools, small against large data
parallelism, three months of jobs under its placements, and its premises on live traces.

Only fragments of the paper survive, so pools are sized by memory (``sim.workloads.make``), not by
its figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figure import Measured
from benchmarks.sim import c4_pools, c4_premises, c4_trace
from benchmarks.sim.told import rounded
from plait.sim.workloads import plexrl


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is simulated."""

    sizes: Sequence[str] = tuple(plexrl.SIZES)
    ks: Sequence[int] = (2, 3, 4)
    steps: int = 12
    days: float = 91.0
    jobs_per_day: float = 10.0
    n_groups: int = 2
    compress: float = 8.0
    constants: Sequence[str] | None = None
    live_steps: int = 12
    """Of each job of the live launches; 0: none."""
    picture: bool = True
    provisions: Sequence[float] = (0.5, 1.0, 2.0)


SMALL = Size(
    sizes=("7b",),
    ks=(2,),
    steps=2,
    days=4.0,
    n_groups=1,
    compress=50.0,
    constants=("train_mfu",),
    live_steps=0,
    picture=False,
    provisions=(1.0,),
)


def measure() -> Measured:
    """At full size."""
    return measured(Size())


def measured(size: Size) -> Measured:
    """``value``: least share of the geometric ceiling that two jobs on a pool reach. ``ok``: all
    sizes save something, nothing more than the ceiling, and backfill is the best of the trace's
    policies."""
    pools = {name: c4_pools.savings(name, size.ks, size.steps) for name in size.sizes}
    two = [row["by jobs on the pool"][str(size.ks[0])] for row in pools.values()]
    trace, delays = c4_trace.months(
        jobs_per_day=size.jobs_per_day,
        n_groups=size.n_groups,
        compress=size.compress,
        days=size.days,
        provisions=size.provisions,
    )
    detail: dict[str, Any] = {
        "shared pools": pools,
        "beside the paper": {
            name: c4_pools.with_paper(name, row) for name, row in pools.items() if 2 in size.ks
        },
        "by copies in the rollout pool": {
            name: c4_pools.fewer_copies(name, size.steps) for name in size.sizes
        },
        "small against large data parallel": {
            name: c4_pools.data_parallel(name, max(1, size.steps // 4)) for name in size.sizes
        },
        "three months": trace,
        "sensitivity of the saving": {
            name: c4_pools.sensitivity(name, min(4, size.steps), size.constants)
            for name in size.sizes
        },
    }
    if size.live_steps:
        detail["premises, on live traces"] = c4_premises.live(size.live_steps)
    if size.picture:
        detail["picture"] = c4_trace.draw(delays)
    ratio = min(row["saving"] / row["ceiling"] for row in two)
    made = [row["ours"] for row in trace["beside the paper"].values()]
    return Measured(
        value=ratio,
        ok=0.0 < ratio <= 1.0 and max(made) <= 1.0,
        detail=rounded(detail),
    )
