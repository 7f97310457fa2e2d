"""C2: JigsawRL's Fig. 12 to 18 and its ablation: our ratios beside the paper's.

Pipelines run under Verl-, RollMux-, MuxServe-, StreamRL- and AReaL-like schemes and under ours
(look-ahead co-location, merging, balancing); beside them, without a figure of the paper's, each on
half of the devices (*split*). Lengths and constants are the committed ones; nothing
is fitted here. Then each constant of the cost and slowdown models by 30 % up and down, and the same
with lengths and passes that Table 1 speaks for (C1).
"""

from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

from benchmarks.figure import Measured
from benchmarks.sim import schemes
from benchmarks.sim.c1_shares import scaled
from benchmarks.sim.pairs import Pair, apart, fits, halved, over_verl, run, shapes
from benchmarks.sim.sensitivity import COMMITTED, Models, effects
from plait.sim.schemes import Scheme
from plait.sim.spec import Setting
from plait.sim.workloads import jigsawrl

STEPS = 4
"""Of each pipeline; from the second on steps are foreseen from the last."""
SENSITIVE = ("qwen3-4b/gsm8k", "llama-3.1-8b-instruct/math")
"""Cells of Fig. 12 on which constants are varied: a skewed task and an even one."""
TABLE_1 = (2.0, 0.1)
"""Factors on medians and sigmas with which C1 fits Table 1 best."""

NO_ROOM = "does not fit"

PAPER = {
    "fig_12 over verl, mean": 1.56,
    "fig_12 over verl, max": 1.95,
    "fig_12 over rollmux, mean": 1.27,
    "fig_12 over muxserve, mean": 1.23,
    "fig_13 over verl, mean": 1.47,
    "fig_13 over verl, max": 1.75,
    "fig_13 over rollmux, mean": 1.31,
    "fig_14 stretch, mean": 1.48,
    "fig_14 stretch, min": 1.14,
    "fig_15 over streamrl, mean": 1.25,
    "fig_15 over streamrl, max": 1.54,
    "fig_15 over areal, mean": 1.21,
    "fig_15 over areal, max": 1.41,
    "fig_16 stretch, max": 1.34,
    "fig_17 gsm8k": 1.24,
    "fig_17 math": 1.07,
    "fig_18 over verl, min": 1.16,
    "fig_18 over verl, max": 1.48,
    "utilisation over verl": 1.7,
    "utilisation over muxserve": 1.5,
}
"""JigsawRL (arXiv 2604.23838), §5.2 to §5.4."""


def measure() -> Measured:
    """Mean throughput over Verl-like of Fig. 12's pairs."""
    return evaluate(steps=STEPS)


def evaluate(
    *,
    steps: int,
    only: Iterable[str] | None = None,
    sensitivity: bool = True,
) -> Measured:
    """``only``: cells of Fig. 12 for a quick look, and nothing else."""
    cells = jigsawrl.fig_12()
    if only is not None:
        cells = {name: cells[name] for name in only}
    found, detail = fig_12(cells, steps)
    if only is None:
        for part in (fig_13, fig_15, fig_16, fig_17, fig_18):
            ratios, rows = part(steps)
            found |= ratios
            detail |= rows
        detail |= ablation(steps)
    detail["table"] = {
        name: {"paper": paper, "ours": round(found[name], 3), "error": found[name] / paper - 1.0}
        for name, paper in PAPER.items()
        if name in found
    }
    detail["over_split_devices"] = found["fig_12 over split devices, mean"]
    if sensitivity:
        detail["over_verl_with_each_constant_30_percent_less_and_more"] = {
            cell: effects(
                lambda models, cell=cell: over_verl(cells[cell], steps=2, models=models) or 0.0
            )
            for cell in SENSITIVE
        }
        detail["with_other_assumptions"] = variants(cells)
    return Measured(value=found["fig_12 over verl, mean"], ok=True, detail=detail)


def fig_12(
    cells: Mapping[str, Setting], steps: int, models: Models = COMMITTED
) -> tuple[dict[str, float], dict[str, Any]]:
    """Synchronous pairs on four devices; Fig. 14's stretch and §5.4's utilisation of the same."""
    rows: dict[str, Any] = {}
    for name, setting in cells.items():
        alone = run(setting, schemes.verl(), steps=steps, models=models)
        rollmux = fits(apart(setting), schemes.rollmux(), steps=steps, models=models)
        split = fits(halved(setting), schemes.verl(), steps=steps, models=models)
        muxserve = run(setting, schemes.muxserve(), steps=steps, models=models)
        ours = run(setting, schemes.ours(models.slowdown), steps=steps, models=models)
        rows[name] = {
            "verl": _over(ours, alone),
            "rollmux": _over(ours, rollmux) if rollmux is not None else NO_ROOM,
            "muxserve": _over(ours, muxserve),
            "split": _over(ours, split) if split is not None else NO_ROOM,
            "stretch": [round(s, 3) for s in ours.stretch(alone)],
            "mfu": ours.mfu,
            "mfu_over_verl": ours.mfu / alone.mfu,
            "mfu_over_muxserve": ours.mfu / muxserve.mfu,
        }
    stretches = [s for row in rows.values() for s in row["stretch"]]
    verl = [row["verl"] for row in rows.values()]
    return {
        "fig_12 over verl, mean": mean(verl),
        "fig_12 over verl, max": max(verl),
        "fig_12 over rollmux, mean": _mean_of(row["rollmux"] for row in rows.values()),
        "fig_12 over muxserve, mean": mean(row["muxserve"] for row in rows.values()),
        "fig_12 over split devices, mean": _mean_of(row["split"] for row in rows.values()),
        "fig_14 stretch, mean": mean(stretches),
        "fig_14 stretch, min": min(stretches),
        "utilisation over verl": mean(row["mfu_over_verl"] for row in rows.values()),
        "utilisation over muxserve": mean(row["mfu_over_muxserve"] for row in rows.values()),
    }, {"fig_12": rows}


def fig_13(steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Larger models on 8 to 64 devices; RollMux-like where half of them can train the model.

    Each scheme has the tensor parallelism that is best for it, of those with which it has room
    for both pipelines (Verl-like: for one).
    """
    rows: dict[str, Any] = {}
    for name, setting in jigsawrl.fig_13().items():
        wider = list(shapes(setting))
        held = [fits(shape, schemes.verl(), steps=steps) for shape in wider]
        alone = max((pair for pair in held if pair is not None), key=lambda pair: pair.tokens_per_s)
        ours, tensor_parallel = _together(wider, schemes.ours(), steps)
        rollmux, _ = _together([apart(shape) for shape in wider], schemes.rollmux(), steps)
        if ours is None:
            rows[name] = "two pipelines do not fit"
            continue
        rows[name] = {
            "verl": _over(ours, alone),
            "rollmux": _over(ours, rollmux) if rollmux is not None else NO_ROOM,
            "stretch": [round(s, 3) for s in ours.stretch(alone)],
            "tensor_parallel": tensor_parallel,
        }
    there = [row for row in rows.values() if isinstance(row, dict)]
    verl = [row["verl"] for row in there]
    return {
        "fig_13 over verl, mean": mean(verl),
        "fig_13 over verl, max": max(verl),
        "fig_13 over rollmux, mean": _mean_of(row["rollmux"] for row in there),
    }, {"fig_13": rows}


def fig_15(steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Asynchronous pairs: one after the other on halves, against both with halves swapped."""
    ratios: dict[str, float] = {}
    rows: dict[str, Any] = {}
    for system, kind in (("streamrl", "one-step"), ("areal", "async")):
        found = {
            name: over_verl(setting, steps=steps)
            for name, setting in jigsawrl.fig_15(kind).items()  # type: ignore[arg-type]
        }
        rows[system] = {name: NO_ROOM if v is None else round(v, 3) for name, v in found.items()}
        there = [value for value in found.values() if value is not None]
        ratios[f"fig_15 over {system}, mean"] = mean(there)
        ratios[f"fig_15 over {system}, max"] = max(there)
    return ratios, {"fig_15": rows}


def fig_16(steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Models of different size: throughput over one after the other, and each one's stretch."""
    rows: dict[str, Any] = {}
    for name, setting in jigsawrl.fig_16().items():
        alone = run(setting, schemes.verl(), steps=steps)
        ours = run(setting, schemes.ours(), steps=steps)
        rows[name] = {"verl": _over(ours, alone), "stretch": ours.stretch(alone)}
    return {"fig_16 stretch, max": max(s for row in rows.values() for s in row["stretch"])}, {
        "fig_16": rows
    }


def fig_17(steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    """A synchronous pipeline beside one that rolls out a step ahead."""
    found = {task: over_verl(setting, steps=steps) for task, setting in jigsawrl.fig_17().items()}
    return {f"fig_17 {task}": v for task, v in found.items() if v is not None}, {}


def fig_18(steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Tensor and data parallelism."""
    found = {name: over_verl(setting, steps=steps) for name, setting in jigsawrl.fig_18().items()}
    there = [value for value in found.values() if value is not None]
    return {"fig_18 over verl, min": min(there), "fig_18 over verl, max": max(there)}, {
        "fig_18": {name: NO_ROOM if v is None else round(v, 3) for name, v in found.items()}
    }


def ablation(steps: int) -> dict[str, Any]:
    """Throughput over Verl-like with parts switched off (Fig. 19, 20)."""
    parts: dict[str, dict[str, bool]] = {
        "all": {},
        "without balancing": {"balancing": False},
        "without merging": {"merging": False, "balancing": False},
        "greedy instead of look-ahead": {"greedy": True},
    }
    rows: dict[str, Any] = {}
    for name, setting in jigsawrl.fig_20().items():
        alone = run(setting, schemes.verl(), steps=steps)
        rows[f"{name} devices"] = {
            part: _over(run(setting, schemes.ours(**switches), steps=steps), alone)
            for part, switches in parts.items()
        }
    return {"ablation": rows}


def variants(cells: Mapping[str, Setting]) -> dict[str, Any]:
    """Fig. 12's means with what Table 1 speaks for instead of what is assumed."""
    long = {name: scaled(setting, TABLE_1, 2) for name, setting in cells.items()}
    twice = Models(factors={"reference_mfu": 0.5})
    return {
        "lengths that fit Table 1": _short(fig_12(long, 2)[0]),
        "two passes of reference": _short(fig_12(cells, 2, twice)[0]),
        "both": _short(fig_12(long, 2, twice)[0]),
    }


def _together(shapes: Iterable[Setting], scheme: Scheme, steps: int) -> tuple[Pair | None, int]:
    """Of the best shape with which both pipelines have room, and its tensor parallelism."""
    best: tuple[Pair | None, int] = None, 0
    for setting in shapes:
        found = fits(setting, scheme, steps=steps)
        if found is None or not found.together:
            continue
        if best[0] is None or found.tokens_per_s > best[0].tokens_per_s:
            best = found, setting.jobs[0].tensor_parallel
    return best


def _over(ours: Pair, theirs: Pair) -> float:
    return round(ours.tokens_per_s / theirs.tokens_per_s, 3)


def _mean_of(values: Iterable[float | str]) -> float:
    """Of those that there are; 0 without any."""
    there = [value for value in values if not isinstance(value, str)]
    return mean(there) if there else 0.0


def _short(ratios: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in ratios.items()}
