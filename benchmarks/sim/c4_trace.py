"""Trace: three months of jobs on node groups under PlexRL's placements (Fig. 8).

Time is compressed: steps of each job and the time between arrivals are both divided by
``compress``, so that load, order and length of the jobs relative to each other stay, and a decision
is made for each. More jobs come than isolated devices can take: otherwise a makespan is the last
arrival, whatever the policy.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, quantiles
from typing import Any

from benchmarks.figure import RESULTS
from benchmarks.sim.c4_pools import run
from benchmarks.sim.told import beside
from plait.policies.baselines import packing
from plait.policies.hrrn import HrrnDispatch
from plait.policies.node_groups import CyclicPlacement
from plait.policies.registry import make
from plait.sim.costs.roofline import costs_of
from plait.sim.schemes import Placement, Scheme, isolated
from plait.sim.spec import Setting
from plait.sim.workloads.cluster import THREE_MONTHS, trace

PAPER = {"pack": 0.70, "spread": 0.65, "spread+backfill": 0.56}
"""Makespan over isolated's, from summaries of the paper."""
Compared = tuple[dict[str, Any], dict[str, list[float]]]
"""What is told of all policies, and every job's queueing delay by policy."""

DRAWS = 2
"""Different rollouts of each job."""
PLACEMENTS: Mapping[str, Placement] = {
    "pack": packing.pack(),
    "spread": packing.spread(),
    "spread+backfill": packing.spread(backfill=True),
    "cyclic": CyclicPlacement(),
}


def workload(*, jobs_per_day: float, n_groups: int, compress: float, days: float) -> Setting:
    """Jobs with rollout devices that they bring along, and groups to train on."""
    setting = trace(
        days=days, jobs_per_day=jobs_per_day, n_groups=n_groups, group_devices=32, seed=0
    )
    jobs = tuple(
        replace(
            spec,
            steps=max(2, round(spec.steps / compress)),
            arrival_s=spec.arrival_s / compress,
            # One event for a worker's calls: each by itself would cost hours.
            tool=spec.tool and replace(spec.tool, blocked=True),
        )
        for spec in setting.jobs
    )
    return replace(setting, jobs=jobs, options={"rollout_from": "brought", "draws": DRAWS})


def compare(setting: Setting, days: float, compress: float) -> Compared:
    """Makespans and queueing delays, in days of the trace."""
    schemes = {"isolated": isolated()}
    for name, placement in PLACEMENTS.items():
        schemes[name] = Scheme(
            name=name,
            sharing=make(),
            full="shared-train",
            placement=placement,
            dispatch=HrrnDispatch(),
        )
    outcomes = {name: run(setting, scheme, costs_of) for name, scheme in schemes.items()}
    base = outcomes["isolated"].makespan_s
    alone = {job.name: _run_s(job) for job in outcomes["isolated"].jobs}
    delays = {
        name: [(job.began_s - job.arrival_s) * compress / 86_400.0 for job in outcome.jobs]
        for name, outcome in outcomes.items()
    }
    rows = {}
    for name, outcome in outcomes.items():
        rows[name] = {
            "makespan, days": outcome.makespan_s * compress / 86_400.0,
            "queueing delay, days": {
                "median": sorted(delays[name])[len(delays[name]) // 2],
                "p95": quantiles(delays[name], n=20)[-1],
                "mean": fmean(delays[name]),
            },
            "stretch of a job once it runs": fmean(
                _run_s(job) / alone[job.name] for job in outcome.jobs
            ),
            "utilisation": outcome.utilisation,
            "switch, share of device time": outcome.switch_s
            / (outcome.n_devices * outcome.makespan_s),
        }
    told = {
        "jobs": len(setting.jobs),
        "isolated's makespan over the time of arrivals": base * compress / (days * 86_400.0),
        "policies": rows,
        "makespan over isolated's": {
            name: beside(paper, outcomes[name].makespan_s / base) for name, paper in PAPER.items()
        },
    }
    return told, delays


def draw(delays: Mapping[str, list[float]], name: str = "C4") -> str:
    """The CDF of queueing delays."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    for policy, values in delays.items():
        ordered = sorted(values)
        axes.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], label=policy)
    axes.set(xlabel="queueing delay, days", ylabel="part of the jobs", ylim=(0, 1))
    axes.legend()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path.name


def months(
    *,
    jobs_per_day: float = 10.0,
    n_groups: int = 2,
    compress: float = 16.0,
    days: float = THREE_MONTHS,
) -> Compared:
    """The comparison at some size."""
    setting = workload(jobs_per_day=jobs_per_day, n_groups=n_groups, compress=compress, days=days)
    return compare(setting, days, compress)


def _run_s(job: Any) -> float:
    return float(job.step_ends_s[-1] - job.began_s)
