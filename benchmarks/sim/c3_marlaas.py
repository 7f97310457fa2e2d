"""C3: MARLaaS (arXiv 2605.08527) — ten agentic LoRA runs against its three baselines, its ablation,
1 to 32 runs, and where sharing loses.

The paper gives no table in text that survives, only ranges over its settings; ours are compared
with the ends of these. Its utilisation is read from AI-core counters; ours is the share of device
time in which something ran, with MFU beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.figure import Measured
from benchmarks.sim.sensitivity import Models, changes, names
from benchmarks.sim.told import beside, rounded, steps_per_hour, tpts_s, ttfs_s
from plait.sim.costs.roofline import costs_of
from plait.sim.outcome import Outcome
from plait.sim.schemes import lora
from plait.sim.simulate import simulate
from plait.sim.spec import Cluster, Setting
from plait.sim.workloads import marlaas
from plait.sim.workloads.make import job, node_group
from plait.sim.world import CostsOf

OURS = "plait"
SINGLE = ("single-disaggregated", "single-collocated")
"""Without multi-LoRA: what the paper's 1.8 to 6.5 times are over."""
BASELINES = (*SINGLE, "multi-lora-sync")

LONGEST = 4096
"""Tokens that a sample of GSM8K has at most, with its prompt: a cache must hold one."""
ANOTHER_MODEL, ANOTHER_RUNS, ANOTHER_DEVICES = "qwen3-4b", 8, 8
"""A replication by others: one node of eight GPUs, Qwen3-4B, eight runs."""
CACHES = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Parts of a device's cache that are left, for the region where sharing loses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is simulated."""

    steps: int = 8
    """Of each run; the paper's 100 differ in the lengths that are drawn alone."""
    amc_steps: int = 20
    models: Sequence[str] = tuple(marlaas.DEPLOYMENTS)
    runs: Sequence[int] = marlaas.RUNS
    replicas: int = 10
    caches: Sequence[float] = CACHES
    constants: Sequence[str] | None = None
    """For sensitivity; all where none are named."""


SMALL = Size(
    steps=2,
    amc_steps=3,
    models=("qwen3-0.6b",),
    runs=(1, 2, 4),
    replicas=4,
    caches=(1.0, 0.01),
    constants=("train_mfu",),
)


def measure() -> Measured:
    """All of it at full size."""
    return measured(Size())


def measured(size: Size) -> Measured:
    """``ok``: ours has more throughput than each baseline at each size, and ends where it must
    where sharing loses: admission keeps what the best baseline has."""
    sizes = {model: _ten(model, size) for model in size.models}
    scaling = _scaling(size)
    region = _region(size)
    first = next(iter(sizes.values()))
    gains = [gain for row in sizes.values() for gain in row["throughput over"].values()]
    detail = {
        "ten search runs": sizes,
        "beside the paper": _beside(sizes),
        "ablation, AMC12": _ablation(size),
        "1 to 32 runs": scaling,
        "where sharing loses": region,
        "a replication by others": _replication(size),
        "sensitivity of the gain over single-disaggregated": changes(
            partial(_gain, size=size, over="single-disaggregated"),
            names(slowdown=False, lora=True) if size.constants is None else size.constants,
        ),
    }
    return Measured(
        value=first["throughput over"]["single-disaggregated"],
        ok=min(gains) > 1.0,
        detail=rounded(detail),
    )


def run(setting: Setting, policy: str, costs: CostsOf = costs_of, **options: object) -> Outcome:
    """A setting under a live policy's name."""
    return simulate(setting, lora(policy, **options), costs, mode="fluid", spans=False)


def _ten(model: str, size: Size) -> dict[str, Any]:
    """Tables 2 and 3: ten runs of the search agent."""
    setting = marlaas.replicas(model, "wiki-search", size.replicas, steps=size.steps)
    ours = run(setting, OURS)
    others = {name: run(setting, name) for name in BASELINES}
    idle = 1.0 - ours.utilisation
    return {
        "steps per hour": {o.scheme: steps_per_hour(o) for o in (ours, *others.values())},
        "utilisation": {o.scheme: o.utilisation for o in (ours, *others.values())},
        "MFU": {o.scheme: o.mfu for o in (ours, *others.values())},
        "throughput over": {n: o.makespan_s / ours.makespan_s for n, o in others.items()},
        "time less than": {n: 1.0 - ours.makespan_s / o.makespan_s for n, o in others.items()},
        "utilisation over": {n: ours.utilisation / o.utilisation for n, o in others.items()},
        "MFU over": {n: ours.mfu / o.mfu for n, o in others.items()},
        "idle points less than": {n: 1.0 - o.utilisation - idle for n, o in others.items()},
    }


def _beside(sizes: dict[str, Any]) -> dict[str, Any]:
    def over(what: str, names: Sequence[str] = BASELINES) -> list[float]:
        return [row[what][name] for row in sizes.values() for name in names]

    gains = over("throughput over", SINGLE)
    return {
        "utilisation, most": beside(4.3, max(over("utilisation over"))),
        "MFU, most (for the same)": beside(4.3, max(over("MFU over"))),
        "throughput, least": beside(1.8, min(gains)),
        "throughput, most": beside(6.5, max(gains)),
        "throughput, most (section 1)": beside(5.7, max(gains)),
        "idle time, points less at most": beside(0.45, max(over("idle points less than"))),
        "time less at most": beside(0.85, max(over("time less than"))),
    }


def _ablation(size: Size) -> dict[str, Any]:
    """Table 4: AMC12 at 0.6B. Without asynchrony runs wait for each other in rounds; without
    multi-LoRA rollout besides, one run is served at a time."""
    setting = marlaas.replicas("qwen3-0.6b", "amc12", size.replicas, steps=size.amc_steps)
    whole = run(setting, OURS)
    rounds = run(setting, "multi-lora-sync")
    single = run(setting, "sequential")
    alone = run(setting, "no-multi-lora")
    base = steps_per_hour(whole)
    without = steps_per_hour(rounds) / base - 1.0
    neither = steps_per_hour(single) / base - 1.0
    return {
        "without asynchrony": beside(-0.66, without),
        "without multi-LoRA rollout too, points further": beside(-0.13, neither - without),
        "without multi-LoRA rollout alone": steps_per_hour(alone) / base - 1.0,
        "utilisation": {o.scheme: o.utilisation for o in (whole, rounds, single, alone)},
    }


def _scaling(size: Size) -> dict[str, Any]:
    """Figures 6 and 7."""
    rows: dict[str, Any] = {}
    one: Outcome | None = None
    for n in size.runs:
        setting = marlaas.replicas("qwen3-0.6b", "wiki-search", n, steps=size.steps)
        ours = run(setting, OURS)
        one = one or ours
        rounds = run(setting, "multi-lora-sync") if n > 1 else ours
        adaptive = run(setting, OURS, admission="adaptive") if n > 1 else ours
        rows[str(n)] = {
            "throughput over one run's": steps_per_hour(ours) / steps_per_hour(one),
            "step stretch": tpts_s(ours) / tpts_s(one),
            "TTFS": ttfs_s(ours),
            "TPTS": tpts_s(ours),
            "utilisation": ours.utilisation,
            "multi-lora-sync: TPTS": tpts_s(rounds),
            "multi-lora-sync: throughput over one run's": steps_per_hour(rounds)
            / steps_per_hour(one),
            "adaptive: TPTS": tpts_s(adaptive),
            "adaptive: throughput over one run's": steps_per_hour(adaptive) / steps_per_hour(one),
            # One after the other: the last waits for all before it.
            "sequential: mean TTFS": ttfs_s(one) + (n - 1) / 2.0 * one.makespan_s,
        }
    return rows


def _node(size: Size, share: float = 1.0, task: str = "gsm8k-2048") -> Setting:
    """Eight runs on one node of eight GPUs; ``share`` of a device's cache."""
    jobs = tuple(
        job(
            f"run-{i}",
            ANOTHER_MODEL,
            task,
            groups=marlaas.BATCHES[task],
            samples=4,
            train_devices=2,
            steps=size.steps,
            tenant=f"run-{i}",
        )
        for i in range(ANOTHER_RUNS)
    )
    group = node_group("node", "h100", ANOTHER_DEVICES)
    setting = Setting(cluster=Cluster(groups=(group,)), jobs=jobs)
    if share < 1.0:
        costs = costs_of(ANOTHER_MODEL, "h100", 1, weights="lora")
        free = 0.9 * costs.memory_bytes - costs.weight_bytes
        tokens = max(LONGEST + 1, int(share * free / costs.kv_bytes_per_token))
        setting = replace(setting, options={"kv_tokens": tokens})
    return setting


def _region(size: Size) -> dict[str, Any]:
    """Aggregate throughput over one run at a time on all devices, as the cache shrinks. Below 1,
    sharing loses."""
    rows = {}
    for share in size.caches:
        setting = _node(size, share)
        alone = run(setting, "single-collocated")
        options = {"all admitted": "no-admission", "ours": OURS, "rounds": "multi-lora-sync"}
        rows[f"cache {share:g}"] = {
            what: alone.makespan_s / run(setting, policy).makespan_s
            for what, policy in options.items()
        } | {
            "ours, adaptive": alone.makespan_s
            / run(setting, OURS, admission="adaptive").makespan_s,
            "ours, collocated": alone.makespan_s
            / run(setting, OURS, topology="collocated").makespan_s,
        }
    return rows


def _replication(size: Size) -> dict[str, Any]:
    """Of eight runs together against one on the same devices: a hint, in another system."""
    setting = _node(size)
    ours, alone = run(setting, OURS), run(setting, "single-disaggregated")
    return {
        "aggregate": beside(2.81, alone.makespan_s / ours.makespan_s),
        "step latency": beside(2.62, tpts_s(ours) / tpts_s(alone)),
    }


def _gain(models: Models, *, size: Size, over: str) -> float:
    """At 0.6B, with few steps."""
    setting = marlaas.replicas("qwen3-0.6b", "wiki-search", size.replicas, steps=min(2, size.steps))
    costs = models.costs_of
    return run(setting, over, costs).makespan_s / run(setting, OURS, costs).makespan_s
