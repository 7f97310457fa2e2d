"""A2: four different SmolLM2 jobs until each has reached its target reward.

Shared against ``sequential`` and ``multi-lora-sync``; the bound is the work computed and the
longest job alone; TTFS against sequential; held-out reward against runs alone (three seeds).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.figure import Measured
from benchmarks.live.a3_latency import longest_job
from benchmarks.live.launches import Run, run
from plait.jobs.load import load_jobs
from plait.jobs.spec import JobSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "202_smollm2_four_jobs.yaml"
SEEDS = (0, 1, 2)
FASTER, THAN_SYNC, OF_BOUND, TTFS = 1.5, 1.2, 0.85, 0.4


def measure() -> Measured:
    """How much faster than one after the other."""
    specs = list(load_jobs([EXAMPLE]))
    shared: dict[int, Run] = {}
    alone: dict[int, Run] = {}
    for s in SEEDS:
        shared[s] = run(_seeded(specs, s), "plait")
        alone[s] = run(_seeded(specs, s), "sequential")
    return judge(specs, shared, alone, run(specs, "multi-lora-sync"))


def judge(
    specs: Sequence[JobSpec], shared: Mapping[int, Run], alone: Mapping[int, Run], sync: Run
) -> Measured:
    """What the launches show; ``shared`` and ``alone`` by seed, ``sync`` of the first seed."""
    faster = median(alone[s].wall_s / shared[s].wall_s for s in SEEDS)
    than_sync = sync.wall_s / shared[0].wall_s
    of_bound = median(
        max(shared[s].work_s, longest_job(alone[s])) / shared[s].wall_s for s in SEEDS
    )
    ttfs = median(_ttfs(shared[s]) / _ttfs(alone[s]) for s in SEEDS)
    rewards = {
        spec.name: {
            "shared": [_held_out(shared[s], spec.name) for s in SEEDS],
            "alone": [_held_out(alone[s], spec.name) for s in SEEDS],
        }
        for spec in specs
    }
    within = all(_within(row["shared"], row["alone"]) for row in rewards.values())
    return Measured(
        value=faster,
        ok=faster >= FASTER
        and than_sync >= THAN_SYNC
        and of_bound >= OF_BOUND
        and ttfs <= TTFS
        and within,
        detail={
            "than_multi_lora_sync": than_sync,
            "of_bound": of_bound,
            "ttfs_ratio": ttfs,
            "held_out_within_interval": within,
            "held_out": rewards,
            "shared_s": [shared[s].wall_s for s in SEEDS],
            "sequential_s": [alone[s].wall_s for s in SEEDS],
            "sync_s": sync.wall_s,
            "steps": {
                spec.name: {
                    "shared": [_steps(shared[s], spec.name) for s in SEEDS],
                    "alone": [_steps(alone[s], spec.name) for s in SEEDS],
                }
                for spec in specs
            },
            "work_s": [shared[s].work_s for s in SEEDS],
            "longest_job_s": [longest_job(alone[s]) for s in SEEDS],
        },
    )


def _seeded(specs: Sequence[JobSpec], seed: int) -> list[JobSpec]:
    return [spec.model_copy(update={"seed": spec.seed + 1000 * seed}) for spec in specs]


def _ttfs(one: Run) -> float:
    return median(job.ttfs_s for job in one.stats.jobs if job.ttfs_s is not None)


def _steps(one: Run, name: str) -> int:
    return next(j.steps for j in one.stats.jobs if j.name == name)


def _held_out(one: Run, name: str) -> tuple[float, float, float]:
    job = next(j for j in one.stats.jobs if j.name == name)
    last = job.reward_last
    assert job.reward_is_held_out
    assert last is not None
    return last.mean, last.low, last.high


def _within(
    shared: list[tuple[float, float, float]], alone: list[tuple[float, float, float]]
) -> bool:
    """The mean over seeds lies in the interval spanned by the runs alone."""
    mean = sum(s[0] for s in shared) / len(shared)
    low = sum(a[1] for a in alone) / len(alone)
    high = sum(a[2] for a in alone) / len(alone)
    return low <= mean <= high
