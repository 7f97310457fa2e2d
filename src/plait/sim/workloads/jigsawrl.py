"""JigsawRL's settings (arXiv 2604.23838): Table 1, and pairs of pipelines as in Fig. 12 to 18.

GRPO with reference, 64 prompts of 4 samples, at most 8192 tokens. The figures' exact cells are not
in the text: each function says which are taken.
"""

from dataclasses import replace
from typing import Any

from plait.core.errors import ConfigError
from plait.sim.spec import Cluster, JobSpec, Pipeline, Setting
from plait.sim.workloads.assumptions import (
    JIGSAW_GROUP,
    JIGSAW_PROMPTS,
    JIGSAW_TENSOR_PARALLEL,
    LIMIT,
)
from plait.sim.workloads.make import job, node_group, tensor_parallel

STEPS = 10
"""As many as Fig. 6 shows side by side."""

STALENESS = 4
"""Of AReaL-like pipelines: "up to several model update steps" (§5.1)."""

FIG_12_MODELS = ("qwen3-0.6b", "qwen3-4b", "qwen3-4b-instruct", "llama-3.1-8b-instruct")
FIG_12_TASKS = ("gsm8k", "math", "aime", "search")
FIG_13_MODELS = ("deepseek-r1-distill-qwen-14b", "qwen3-32b")
FIG_13_DEVICES = (8, 16, 32, 64)
FIG_16_PAIRS = (
    ("qwen3-0.6b", "qwen3-4b"),
    ("qwen3-0.6b", "llama-3.1-8b-instruct"),
    ("qwen3-4b", "llama-3.1-8b-instruct"),
)
FIG_18_SHAPES = ((2, 1), (4, 1), (8, 1), (4, 2), (4, 4))
"""(TP, DP); (4, 1) and (4, 4) are compared in §5.4, TP 2, 4 and 8 are named there."""


def pipeline(name: str, model: str, task: str, n_devices: int, **fields: Any) -> JobSpec:
    """A full-weight pipeline that has all ``n_devices`` for rollout and training in turn."""
    usual: dict[str, Any] = {
        "weights": "full",
        "groups": JIGSAW_PROMPTS,
        "samples": JIGSAW_GROUP,
        "reference": True,
        "limit": LIMIT,
        "steps": STEPS,
        "train_devices": n_devices,
    }
    return job(name, model, task, **{**usual, **fields})


def pair(
    model: str, task: str, *, device: str = "h100", n_devices: int = 4, **fields: Any
) -> Setting:
    """Two pipelines with the same model and task and different weights (§5.2)."""
    copy = JIGSAW_TENSOR_PARALLEL.get(model) or tensor_parallel(model, device)
    fields = {"tensor_parallel": copy, **fields}
    jobs = tuple(pipeline(name, model, task, n_devices, **fields) for name in ("a", "b"))
    return _on(device, n_devices, jobs)


def table_1() -> dict[str, Setting]:
    """One pipeline alone, by the row's model, task and devices; 64 are A100, 4 are H100."""
    rows = (
        ("qwen3-0.6b", "gsm8k", 4),
        ("qwen3-4b", "gsm8k", 4),
        ("qwen3-4b", "aime", 4),
        ("qwen3-4b", "gsm8k", 64),
        ("qwen3-4b", "search", 4),
    )
    return {
        f"{model}/{task}/{n}": _on("a100" if n > 8 else "h100", n, (pipeline("a", model, task, n),))
        for model, task, n in rows
    }


def fig_12() -> dict[str, Setting]:
    """Synchronous pairs on four H100 (Fig. 12, 14): each model on each task."""
    return {f"{m}/{t}": pair(m, t) for m in FIG_12_MODELS for t in FIG_12_TASKS}


def fig_13() -> dict[str, Setting]:
    """Larger models on 8 to 64 A100; MATH is taken, as the text names no task."""
    return {
        f"{model}/{n}": pair(model, "math", device="a100", n_devices=n)
        for model in FIG_13_MODELS
        for n in FIG_13_DEVICES
    }


def fig_15(kind: Pipeline) -> dict[str, Setting]:
    """Asynchronous pairs, half of four H100 for rollout and half for training (§5.3)."""
    if kind == "sync":
        raise ConfigError("Fig. 15 is about asynchronous pipelines: give one-step or async")
    halves = _halves(kind, 4)
    return {f"{m}/{t}": pair(m, t, **halves) for m in FIG_12_MODELS for t in ("gsm8k", "math")}


def fig_16() -> dict[str, Setting]:
    """Two models of different size on GSM8K and on MATH, four H100."""
    return {
        f"{a}+{b}/{task}": _on("h100", 4, (pipeline("a", a, task, 4), pipeline("b", b, task, 4)))
        for a, b in FIG_16_PAIRS
        for task in ("gsm8k", "math")
    }


def fig_17() -> dict[str, Setting]:
    """A synchronous pipeline beside one that rolls out a step ahead, Qwen3-4B."""
    settings = {}
    for task in ("gsm8k", "math"):
        sync = pipeline("sync", "qwen3-4b", task, 4)
        ahead = replace(pipeline("ahead", "qwen3-4b", task, 4), **_halves("one-step", 4))
        settings[task] = _on("h100", 4, (sync, ahead))
    return settings


def fig_18(model: str = "qwen3-4b") -> dict[str, Setting]:
    """Tensor and data parallelism on A100, four to a node; MATH is taken, and the model that most
    figures show (two devices could not train the larger ones)."""
    return {
        f"tp{tp}-dp{dp}": pair(model, "math", device="a100", n_devices=tp * dp, tensor_parallel=tp)
        for tp, dp in FIG_18_SHAPES
    }


def fig_20() -> dict[str, Setting]:
    """Pairs on which merging and balancing are switched off: long tails on four and on 16 workers
    (the cells are not in the text)."""
    return {
        "4": pair("qwen3-4b", "gsm8k"),
        "16": pair("qwen3-4b", "gsm8k", device="a100", n_devices=16),
    }


def _halves(kind: Pipeline, n_devices: int) -> dict[str, Any]:
    half = n_devices // 2
    staleness = 1 if kind == "one-step" else STALENESS
    return {
        "pipeline": kind,
        "staleness": staleness,
        "rollout_devices": half,
        "train_devices": half,
    }


def _on(device: str, n_devices: int, jobs: tuple[JobSpec, ...]) -> Setting:
    return Setting(cluster=Cluster(groups=(node_group("all", device, n_devices),)), jobs=jobs)
