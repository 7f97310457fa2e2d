"""Trace: three months of jobs on node groups under PlexRL's placements (Fig. 8).

Time is compressed: steps of each job and the time between arrivals are both divided by
``compress``, so that load, order and length of the jobs relative to each other stay, and a decision
is made for each. More jobs come than isolated devices can take: otherwise a makespan is the last
arrival, whatever the policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median, quantiles
from typing import Any

from benchmarks.figure import RESULTS
from benchmarks.sim.told import beside
from plait.policies.baselines import packing
from plait.policies.hrrn import HrrnDispatch
from plait.policies.node_groups import CyclicPlacement
from plait.policies.registry import make
from plait.sim.costs.roofline import costs_of
from plait.sim.outcome import JobOutcome, Outcome
from plait.sim.schemes import Placement, Scheme, isolated
from plait.sim.simulate import simulate
from plait.sim.spec import Cluster, Setting
from plait.sim.workloads.cluster import DAY_S, THREE_MONTHS, trace
from plait.sim.workloads.make import node_group

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
    return replace(
        setting, jobs=jobs, options={"rollout_from": "brought", "draws": DRAWS, "estimated": True}
    )


def compare(setting: Setting, days: float, compress: float) -> Compared:
    """Makespans and queueing delays, in days of the trace."""
    known: dict[Any, Any] = {}
    outcomes = {"isolated": play(setting, isolated(), known)}
    for name, placement in PLACEMENTS.items():
        outcomes[name] = play(setting, _shared(name, placement), known)
    cold = replace(setting, options={**setting.options, "estimated": False})
    outcomes["cyclic, cold"] = play(cold, _shared("cyclic", CyclicPlacement()), known)
    base = outcomes["isolated"].makespan_s
    alone = {job.name: _run_s(job) for job in outcomes["isolated"].jobs}
    delays = {
        name: [(job.began_s - job.arrival_s) * compress / DAY_S for job in outcome.jobs]
        for name, outcome in outcomes.items()
    }
    rows = {}
    for name, outcome in outcomes.items():
        stretch = sorted(_run_s(job) / alone[job.name] for job in outcome.jobs)
        rows[name] = {
            "makespan, days": outcome.makespan_s * compress / DAY_S,
            "makespan over isolated's": outcome.makespan_s / base,
            "queueing delay, days": {
                "median": median(delays[name]),
                "p95": quantiles(delays[name], n=20)[-1],
                "mean": fmean(delays[name]),
            },
            "stretch once it runs": {"mean": fmean(stretch), "worst": stretch[-1]},
            "utilisation": outcome.utilisation,
            "switch, share of device time": outcome.switch_s
            / (outcome.n_devices * outcome.makespan_s),
        }
    told = {
        "jobs": len(setting.jobs),
        "isolated's makespan over the time of arrivals": base * compress / (days * DAY_S),
        "policies": rows,
        "beside the paper": {
            name: beside(paper, outcomes[name].makespan_s / base) for name, paper in PAPER.items()
        },
    }
    return told, delays


def provision(setting: Setting, parts: Sequence[float]) -> dict[str, dict[str, float]]:
    """Makespan over isolated's where rollout devices are part of the cluster, by their number over
    that of training devices: what the result hangs on."""
    out = {}
    n_train = sum(group.n_devices for group in setting.cluster.groups)
    known: dict[Any, Any] = {}
    for part in parts:
        pool = node_group("rollout", setting.cluster.groups[0].device, round(part * n_train))
        groups = (*setting.cluster.groups, pool)
        options = {**setting.options, "rollout_from": "groups"}
        with_pool = replace(setting, cluster=Cluster(groups=groups), options=options)
        base = play(with_pool, isolated(), known).makespan_s
        out[f"{part:g}"] = {
            name: play(with_pool, _shared(name, PLACEMENTS[name]), known).makespan_s / base
            for name in ("spread", "spread+backfill", "cyclic")
        }
    return out


def play(setting: Setting, scheme: Scheme, known: dict[Any, Any]) -> Outcome:
    """A scheme's outcome; rollouts on devices of their own go as they went in the others."""
    return simulate(setting, scheme, costs_of, mode="fluid", spans=False, repeats=known)


def _shared(name: str, placement: Placement) -> Scheme:
    return Scheme(
        name=name,
        sharing=make(),
        full="shared-train",
        placement=placement,
        dispatch=HrrnDispatch(),
    )


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
    compress: float = 8.0,
    days: float = THREE_MONTHS,
    provisions: Sequence[float] = (0.5, 1.0, 2.0),
) -> Compared:
    """The comparison at some size; a third of it by provision."""
    sizes = {"jobs_per_day": jobs_per_day, "n_groups": n_groups}
    whole, delays = compare(workload(compress=compress, days=days, **sizes), days, compress)
    third = workload(compress=2.0 * compress, days=days / 3.0, **sizes)
    whole["by rollout devices over training devices"] = provision(third, provisions)
    return whole, delays


def _run_s(job: JobOutcome) -> float:
    return job.step_ends_s[-1] - job.began_s
