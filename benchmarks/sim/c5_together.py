"""C5: all mechanisms together on a cluster of LoRA and full-weight jobs, against each paper's.

The same jobs in the same order on the same devices under each scheme; all are strictly on-policy,
so that only the arrangement differs. All wait from the beginning on, and each has as many steps as
it makes alone in ``alone_s``: no job is so long that the makespan is its own, whoever serves it.
Runs are placed by their estimated demand, under every scheme: being profiled first costs one step
of some hundreds in practice, and would be a tenth of these. A full-weight job takes four devices:
all of them in turn for rollout and training, or, where the scheme wants them apart, two for each.

*isolated*: each job on devices of its own. *marlaas*: LoRA runs share one base, the others are
isolated. *plexrl*: full-weight jobs share training pools, LoRA runs are placed like them.
*jigsawrl*: all jobs of a node group share its devices at once, LoRA runs with a base each. *plait*:
LoRA runs share one base whose devices roll out and train side by side, and full-weight jobs all
devices of their node group.

What a paper leaves open is chosen for it: each scheme is run in all its ``arrangements`` and
counts with its shortest makespan. Node groups of a shared base go to the others when its last run
has ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from statistics import fmean
from typing import Any

from benchmarks.figure import Measured
from benchmarks.sim.sensitivity import COMMITTED, Models, changes
from benchmarks.sim.told import rounded
from plait.policies.baselines.schemes import placement
from plait.policies.colocation import LookAhead
from plait.policies.merging import GainMerging
from plait.sim import named
from plait.sim.outcome import JobOutcome, Outcome
from plait.sim.schemes import Scheme, Serial, isolated
from plait.sim.simulate import simulate
from plait.sim.spec import Cluster, JobSpec, Setting
from plait.sim.workloads.make import job, node_group

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
CONSTANTS = (
    "train_mfu",
    "reference_mfu",
    "memory_share",
    "layer_overhead_s",
    "slowdown.compute_exponent",
    "slowdown.contention",
    "slowdown.full_tokens",
    "slowdown.decode_traffic",
    "slowdown.matrix_traffic",
)
"""For sensitivity: those that move C2 or C3 by more than a few percent; five schemes take too long
to try all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is simulated."""

    n: int = 12
    """Jobs of each kind."""
    alone_s: float = 300.0
    """That each job takes by itself, about."""
    loads: Sequence[int] = (6,)
    """Jobs of each kind, besides."""
    splits: Sequence[int] = (1, 2)
    """Node groups for a shared base that are tried."""
    groups: int = GROUPS
    few: int = 3
    few_s: float = 60.0
    few_groups: int = 2
    """For sensitivity: jobs of each kind, that each takes alone, and node groups, so that a device
    has as many jobs as with the full size."""
    constants: Sequence[str] = CONSTANTS


SMALL = Size(n=2, few=1, alone_s=20.0, few_s=20.0, splits=(1,), constants=("train_mfu",), loads=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One way in which a scheme may be run."""

    name: str
    setting: Setting
    scheme: Scheme


def measure() -> Measured:
    """At full size."""
    return measured(Size())


def measured(size: Size) -> Measured:
    """``ok``: ours ends sooner than each paper's alone."""
    outcomes = {name: best(name, size) for name in ("isolated", *PAPERS, OURS)}
    alone = alone_s(size)
    ours = outcomes[OURS][1].makespan_s
    ahead = {name: found.makespan_s / ours for name, (_, found) in outcomes.items() if name != OURS}
    detail = {
        "schemes": {
            name: {"arrangement": which, **summary(found, alone)}
            for name, (which, found) in outcomes.items()
        },
        "ours ahead (makespan over ours)": ahead,
        "by number of jobs of each kind": {str(n): leads(replace(size, n=n)) for n in size.loads},
        "each mechanism left out": left_out(size, outcomes[OURS][0], ours),
        "sensitivity of the least lead over a paper": changes(
            partial(least_lead, size=_small(size)),
            size.constants,
        ),
    }
    least = min(ahead[name] for name in PAPERS)
    return Measured(value=least, ok=least > 1.0, detail=rounded(detail))


def best(name: str, size: Size, models: Models = COMMITTED) -> tuple[str, Outcome]:
    """A scheme's arrangement with the shortest makespan, and what it did."""
    found = [(a.name, run(a, models)) for a in arrangements(name, size, models)]
    return min(found, key=lambda one: one[1].makespan_s)


def arrangements(name: str, size: Size, models: Models = COMMITTED) -> Iterator[Arrangement]:
    """What a scheme is given its best of. *marlaas*: node groups of the shared base, devices of it
    that train. *jigsawrl*: jobs are spread evenly over node groups; filled one after the other
    they are done later. *plait*: node groups of the shared base."""
    scheme, setting = scheme_of(name, models), setting_of(size, apart=name in APART)
    if name == "jigsawrl":
        placed = replace(scheme, placement=placement("spread-backfill"))
        yield Arrangement(name="spread", setting=setting, scheme=placed)
        return
    if scheme.lora == "private":
        yield Arrangement(name="", setting=setting, scheme=scheme)
        return
    for n in size.splits:
        shared = _shared_base(setting, n)
        yield Arrangement(name=f"{n} node groups", setting=shared, scheme=scheme)
        if name == "marlaas":
            jobs = (
                replace(spec, train_devices=4) if spec.weights == "lora" else spec
                for spec in shared.jobs
            )
            shared = replace(shared, jobs=tuple(jobs))
            yield Arrangement(name=f"{n} node groups, 4 train", setting=shared, scheme=scheme)


def scheme_of(name: str, models: Models = COMMITTED) -> Scheme:
    """As ``plait sim --policy`` takes it, believing in the models."""
    found = named.scheme(name)
    if found.merging is None:
        return found
    return replace(
        found,
        colocation=LookAhead(slowdown=models.slowdown),
        merging=GainMerging(slowdown=models.slowdown),
    )


def setting_of(size: Size, *, apart: bool) -> Setting:
    """The jobs on the cluster: a LoRA run and a full-weight job by turns."""
    lora = [lora_job(i, apart=apart) for i in range(size.n)]
    full = [full_job(i, apart=apart) for i in range(size.n)]
    jobs = [spec for pair in zip_longest(lora, full) for spec in pair if spec is not None]
    steps = _steps(size.alone_s)
    return Setting(
        cluster=_cluster(size.groups),
        jobs=tuple(replace(spec, steps=steps[_kind(spec)]) for spec in jobs),
        options={"estimated": True},
    )


def lora_job(i: int, *, apart: bool = False) -> JobSpec:
    """The i-th LoRA run."""
    return job(
        f"lora-{i}",
        LORA_BASE,
        LORA_TASKS[i % len(LORA_TASKS)],
        groups=32,
        train_devices=1 if apart else 2,
        rollout_devices=1 if apart else 0,
        tenant=f"lora-{i}",
        seed=i,
    )


def full_job(i: int, *, apart: bool = False) -> JobSpec:
    """The i-th full-weight job."""
    model, task = FULL[i % len(FULL)]
    return job(
        f"full-{i}",
        model,
        task,
        weights="full",
        groups=64,
        reference=True,
        limit=8192,
        train_devices=2 if apart else 4,
        rollout_devices=2 if apart else 0,
        tenant=f"full-{i}",
        seed=i,
    )


def run(arrangement: Arrangement, models: Models = COMMITTED) -> Outcome:
    """What comes of it."""
    return simulate(
        arrangement.setting,
        arrangement.scheme,
        models.costs_of,
        mode="fluid",
        spans=False,
        slowdown=models.slowdown,
    )


def alone_s(size: Size) -> dict[str, float]:
    """Each job's time with the devices that it has in isolation, and nobody before it."""
    _, outcome = best("isolated", size)
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


def leads(size: Size, models: Models = COMMITTED) -> dict[str, float]:
    """Makespan of each over ours."""
    _, ours = best(OURS, size, models)
    return {
        name: best(name, size, models)[1].makespan_s / ours.makespan_s
        for name in ("isolated", *PAPERS)
    }


def least_lead(models: Models, *, size: Size) -> float:
    """Over the best paper's."""
    found = leads(size, models)
    return min(found[name] for name in PAPERS)


def left_out(size: Size, arrangement: str, ours_s: float) -> dict[str, float]:
    """Makespan over ours without one mechanism, arranged in the same way."""
    whole = scheme_of(OURS)
    way = next(a for a in arrangements(OURS, size) if a.name == arrangement)
    without = {
        "shared base (LoRA runs placed alone)": replace(whole, lora="private"),
        "LoRA training beside rollout (devices apart)": replace(whole, side_by_side=False),
        "co-location of full-weight jobs (one sub-stage at a time)": replace(
            whole, colocation=Serial()
        ),
        "merging and balancing": replace(whole, merging=None, balancing=None),
        "cyclic placement (spread)": replace(whole, placement=placement("spread-backfill")),
    }
    return {
        what: run(replace(way, scheme=scheme)).makespan_s / ours_s
        for what, scheme in without.items()
    }


def _small(size: Size) -> Size:
    return replace(
        size, n=size.few, alone_s=size.few_s, groups=size.few_groups, splits=size.splits[:1]
    )


def _shared_base(setting: Setting, n: int) -> Setting:
    groups = [group.name for group in setting.cluster.groups[:n]]
    options = {**setting.options, "lora_groups": {LORA_BASE: groups}}
    return replace(setting, options=options)


def _steps(alone_s: float) -> dict[tuple[str, str, float], int]:
    """Steps that a job of each kind makes alone in so long, by its first one."""
    kinds = [lora_job(i) for i in range(len(LORA_TASKS))]
    kinds += [full_job(i) for i in range(len(FULL))]
    jobs = tuple(replace(spec, steps=1) for spec in kinds)
    first = simulate(
        Setting(cluster=_cluster(GROUPS), jobs=jobs),
        isolated(),
        COMMITTED.costs_of,
        mode="fluid",
        spans=False,
    )
    return {
        _kind(spec): max(1, round(alone_s / _run_s(one)))
        for spec, one in zip(kinds, first.jobs, strict=True)
    }


def _kind(spec: JobSpec) -> tuple[str, str, float]:
    return spec.weights, spec.model, spec.response.median


def _cluster(n: int) -> Cluster:
    return Cluster(groups=tuple(node_group(f"group-{g}", "h100", GROUP_DEVICES) for g in range(n)))


def _run_s(job: JobOutcome) -> float:
    return job.step_ends_s[-1] - job.began_s


def _ended_s(outcome: Outcome, kind: str) -> float:
    ends = [job.step_ends_s[-1] for job in outcome.jobs if job.name.startswith(kind)]
    return max(ends, default=0.0)
