"""MARLaaS's settings (arXiv 2605.08527, §5): LoRA runs on one base, 16 NPUs a node.

One node group, of which training has the fewest NPUs that it needs (2, 4 and 16) and rollout the
rest. The judge has devices of its own, which are not counted.
"""

from dataclasses import dataclass
from typing import Any

from plait.core.errors import ConfigError
from plait.sim.costs.names import pick
from plait.sim.spec import Cluster, JobSpec, Setting
from plait.sim.workloads.assumptions import MARLAAS_GROUP
from plait.sim.workloads.make import job, node_group, tensor_parallel

STEPS = 100
"""§6."""

BATCHES = {"gsm8k-2048": 64, "amc12": 32, "wiki-search": 32}
"""Prompts of a step by task (§5)."""

MIXED_TASKS = ("gsm8k-2048", "wiki-search", "amc12")
"""Table 1: trained together."""

RUNS = (1, 2, 4, 8, 16, 32)
"""Fig. 6 and 7: from 1 to 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """NPUs of one model size (§5)."""

    rollout: int
    train: int


DEPLOYMENTS = {
    "qwen3-0.6b": Deployment(rollout=14, train=2),
    "qwen3-14b": Deployment(rollout=12, train=4),
    "qwen3-32b": Deployment(rollout=16, train=16),
}
"""One node of 16 for the first two, two nodes for the third."""


def replicas(model: str, task: str, n_runs: int, *, steps: int = STEPS, **fields: Any) -> Setting:
    """``n_runs`` runs of one task that come at once (Tables 2 to 4, Fig. 6 and 7)."""
    if n_runs < 1:
        raise ConfigError(f"{n_runs} runs: give at least 1")
    runs = (run(f"{task}-{i}", model, task, steps=steps, **fields) for i in range(n_runs))
    return _on(model, tuple(runs))


def mixed(model: str = "qwen3-0.6b", *, steps: int = STEPS) -> Setting:
    """Three different tasks together (Table 1)."""
    return _on(model, tuple(run(task, model, task, steps=steps) for task in MIXED_TASKS))


def table_2() -> dict[str, Setting]:
    """Ten agentic runs at each size (Tables 2 and 3)."""
    return {model: replicas(model, "wiki-search", 10) for model in DEPLOYMENTS}


def table_4() -> Setting:
    """Ten runs of AMC12 at 0.6B, of which parts are switched off.

    One epoch: the data set holds some hundred problems, so 20 steps of 32 are taken.
    """
    return replicas("qwen3-0.6b", "amc12", 10, steps=20)


def fig_6() -> dict[int, Setting]:
    """1 to 32 runs; the text names no task, the search agent of Table 2 is taken."""
    return {n: replicas("qwen3-0.6b", "wiki-search", n) for n in RUNS}


def run(name: str, model: str, task: str, **fields: Any) -> JobSpec:
    """One LoRA run; each is its own tenant."""
    where = pick("model of MARLaaS", model, DEPLOYMENTS)
    usual: dict[str, Any] = {
        "weights": "lora",
        "groups": pick("task of MARLaaS", task, BATCHES),
        "samples": MARLAAS_GROUP,
        "train_devices": where.train,
        "tensor_parallel": tensor_parallel(model, "npu"),
        "tenant": name,
    }
    return job(name, model, task, **{**usual, **fields})


def _on(model: str, jobs: tuple[JobSpec, ...]) -> Setting:
    where = pick("model of MARLaaS", model, DEPLOYMENTS)
    group = node_group("npus", "npu", where.rollout + where.train)
    return Setting(cluster=Cluster(groups=(group,)), jobs=jobs)
