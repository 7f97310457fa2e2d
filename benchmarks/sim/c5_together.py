"""C5: all mechanisms together on a cluster of LoRA and full-weight jobs, against each paper's.

The same jobs on the same devices under each scheme; all are strictly on-policy, so that only the
arrangement differs. A full-weight job takes four devices: all of them in turn for rollout and
training, or, where the scheme wants them apart, two for each.

*isolated*: each job on devices of its own. *marlaas*: LoRA runs share one base, the others are
isolated. *plexrl*: full-weight jobs share training pools, LoRA runs are placed like them.
*jigsawrl*: all jobs of a node group share its devices at once, LoRA runs with a base each. *plait*:
LoRA runs share one base, and full-weight jobs all devices of their node group, placed on the cyclic
horizon. How many node groups a shared base gets is what gives the shortest makespan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from benchmarks.figure import Measured
from benchmarks.sim.by_factor import by_factor
from benchmarks.sim.told import rounded
from plait.policies.balancing import EqualFinish
from plait.policies.baselines import schemes as named
from plait.policies.colocation import LookAhead
from plait.policies.merging import GainMerging
from plait.policies.registry import make
from plait.sim.costs.roofline import costs_of
from plait.sim.outcome import JobOutcome, Outcome
from plait.sim.schemes import Scheme, Serial, isolated
from plait.sim.simulate import simulate
from plait.sim.spec import Cluster, JobSpec, Setting
from plait.sim.workloads.make import job, node_group
from plait.sim.world import CostsOf

GROUPS, GROUP_DEVICES = 4, 8
LORA_BASE = "llama-3.1-8b-instruct"
LORA_TASKS = ("gsm8k-2048", "wiki-search", "amc12")
FULL = (
    ("qwen3-4b", "search"),
    ("qwen3-4b", "gsm8k"),
    ("qwen3-4b", "aime"),
    ("qwen3-0.6b", "gsm8k"),
    ("qwen3-4b", "math"),
    ("qwen3-0.6b", "search"),
)
"""Repeated in this order."""
APART = ("plexrl",)
"""Schemes for which rollout and training have devices of their own."""
PAPERS = ("marlaas", "plexrl", "jigsawrl")
OURS = "plait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is simulated."""

    n_lora: int = 9
    n_full: int = 9
    steps: int = 3
    constants: Sequence[str] | None = None
    loads: Sequence[int] = (3, 6)
    """Full-weight jobs, and as many LoRA runs."""
    splits: Sequence[int] = (1, 2)
    """Node groups for a shared base that are tried: each scheme is given its best."""


FEW = {"n_lora": 2, "n_full": 2, "steps": 1, "splits": (1,)}
SMALL = Size(**FEW, constants=("train_mfu",), loads=())


def measure() -> Measured:
    """At full size."""
    return measured(Size())


def measured(size: Size) -> Measured:
    """``ok``: ours ends sooner than each paper's alone."""
    outcomes = all_schemes(size)
    alone = alone_s(size)
    ours = outcomes[OURS]
    ahead = {name: outcomes[name].makespan_s / ours.makespan_s for name in outcomes if name != OURS}
    loads = {str(n): _ahead(all_schemes(replace(size, n_lora=n, n_full=n))) for n in size.loads}
    detail = {
        "schemes": {name: summary(outcome, alone) for name, outcome in outcomes.items()},
        "ours ahead (makespan over ours)": ahead,
        "by number of jobs of each kind": loads,
        "each mechanism left out": _left_out(size, ours),
        "sensitivity of the least lead over a paper": by_factor(
            partial(_lead, size=size),
            **({} if size.constants is None else {"names": size.constants}),
        ),
    }
    least = min(ahead[name] for name in PAPERS)
    return Measured(value=least, ok=least > 1.0, detail=rounded(detail))


def scheme_of(name: str) -> Scheme:
    """One of ``plait.policies.baselines.schemes``, for the simulator."""
    if name == "isolated":
        return isolated()
    spec = named.scheme(name)
    full = "isolated" if spec.full == "sequential" else spec.full
    return Scheme(
        name=name,
        sharing=make(spec.policy),
        full=full,
        lora=spec.lora,
        placement=named.placement(spec.placement),
        dispatch=named.dispatch(spec.dispatch),
        **({"colocation": LookAhead()} if spec.colocation == "look-ahead" else {}),
        **({"merging": GainMerging(), "balancing": EqualFinish()} if spec.merging else {}),
    )


def setting_of(size: Size, *, apart: bool) -> Setting:
    """The jobs on the cluster."""
    jobs: list[JobSpec] = []
    for i in range(size.n_lora):
        task = LORA_TASKS[i % len(LORA_TASKS)]
        jobs.append(
            job(
                f"lora-{i}",
                LORA_BASE,
                task,
                groups=32,
                steps=size.steps,
                train_devices=1 if apart else 2,
                rollout_devices=1 if apart else 0,
                tenant=f"lora-{i}",
                seed=i,
            )
        )
    for i in range(size.n_full):
        model, task = FULL[i % len(FULL)]
        jobs.append(
            job(
                f"full-{i}",
                model,
                task,
                weights="full",
                groups=64,
                reference=True,
                limit=8192,
                steps=size.steps,
                train_devices=2 if apart else 4,
                rollout_devices=2 if apart else 0,
                tenant=f"full-{i}",
                seed=i,
            )
        )
    groups = tuple(node_group(f"group-{g}", "h100", GROUP_DEVICES) for g in range(GROUPS))
    return Setting(cluster=Cluster(groups=groups), jobs=tuple(jobs))


def run(name: str, size: Size, costs: CostsOf = costs_of, scheme: Scheme | None = None) -> Outcome:
    """The size's jobs under a scheme, with the best of its splits."""
    setting, scheme = setting_of(size, apart=name in APART), scheme or scheme_of(name)
    if scheme.lora == "private":
        return simulate(setting, scheme, costs, mode="fluid", spans=False)
    outcomes = []
    for n in size.splits:
        names = [group.name for group in setting.cluster.groups[:n]]
        split = replace(setting, options={"lora_groups": {LORA_BASE: names}})
        outcomes.append(simulate(split, scheme, costs, mode="fluid", spans=False))
    return min(outcomes, key=lambda outcome: outcome.makespan_s)


def all_schemes(size: Size, costs: CostsOf = costs_of) -> dict[str, Outcome]:
    """Every scheme's outcome."""
    return {name: run(name, size, costs) for name in ("isolated", *PAPERS, OURS)}


def alone_s(size: Size) -> dict[str, float]:
    """Each job's time with the devices that it has in isolation, and nobody before it."""
    outcome = run("isolated", size)
    return {job.name: _run_s(job) for job in outcome.jobs}


def summary(outcome: Outcome, alone: Mapping[str, float]) -> dict[str, Any]:
    """What a scheme did."""
    stretch = {job.name: _run_s(job) / alone[job.name] for job in outcome.jobs}
    return {
        "makespan": outcome.makespan_s,
        "mean completion": fmean(job.step_ends_s[-1] - job.arrival_s for job in outcome.jobs),
        "aggregate over one after the other": sum(alone.values()) / outcome.makespan_s,
        "worst stretch": max(stretch.values()),
        "mean stretch": fmean(stretch.values()),
        "utilisation": outcome.utilisation,
        "MFU": outcome.mfu,
        "device hours": outcome.n_devices * outcome.makespan_s / 3600.0,
        "switch, share of device time": outcome.switch_s / (outcome.n_devices * outcome.makespan_s),
        "LoRA ended": _ended_s(outcome, "lora"),
        "full-weight ended": _ended_s(outcome, "full"),
    }


def _ahead(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    ours = outcomes[OURS].makespan_s
    return {name: outcome.makespan_s / ours for name, outcome in outcomes.items() if name != OURS}


def _left_out(size: Size, ours: Outcome) -> dict[str, float]:
    """Makespan over ours without one mechanism."""
    whole = scheme_of(OURS)
    without = {
        "shared base (LoRA runs placed alone)": replace(whole, lora="private"),
        "co-location (one sub-stage at a time)": replace(whole, colocation=Serial()),
        "merging and balancing": replace(whole, merging=None, balancing=None),
        "cyclic placement (spread)": replace(whole, placement=named.placement("spread-backfill")),
    }
    return {
        what: run(OURS, size, scheme=scheme).makespan_s / ours.makespan_s
        for what, scheme in without.items()
    }


def _lead(costs: CostsOf, *, size: Size) -> float:
    """Over the best paper's, with few jobs."""
    outcomes = all_schemes(replace(size, **FEW), costs)
    return min(outcomes[name].makespan_s for name in PAPERS) / outcomes[OURS].makespan_s


def _run_s(job: JobOutcome) -> float:
    return job.step_ends_s[-1] - job.began_s


def _ended_s(outcome: Outcome, kind: str) -> float:
    ends = [job.step_ends_s[-1] for job in outcome.jobs if job.name.startswith(kind)]
    return max(ends, default=0.0)
