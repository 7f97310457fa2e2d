"""C1: stage shares of JigsawRL's Table 1, each row predicted from the other four.

What the paper leaves unsaid is how long responses are. Two numbers are fitted, shared by all rows:
a factor on the median of all tasks and models, and one on their sigma (how skewed they are). Ratios
between tasks and models stay as ``workloads.assumptions`` has them, and so do turns, tools and all
constants of the cost model. Each row is predicted with the factors that fit the other four best.

Verl computes two forward passes before an update by default, the reference's and the policy's own
(``old_log_prob``; verl issue 3996), and the table has one column for both: two are counted, and
the errors with one are given beside.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.figure import Measured
from benchmarks.sim.sensitivity import COMMITTED, Models, effects, names
from benchmarks.sim.stages import STAGES, percent, seconds
from plait.sim.costs.attained import GPU
from plait.sim.schemes import isolated
from plait.sim.simulate import simulate
from plait.sim.spec import JobSpec, Setting
from plait.sim.workloads.jigsawrl import table_1

PAPER = {
    "qwen3-0.6b/gsm8k/4": (66.1, 14.2, 19.7, 0.0),
    "qwen3-4b/gsm8k/4": (52.2, 18.7, 29.1, 0.0),
    "qwen3-4b/aime/4": (80.9, 6.9, 12.2, 0.0),
    "qwen3-4b/gsm8k/64": (67.4, 15.8, 16.8, 0.0),
    "qwen3-4b/search/4": (39.1, 16.6, 24.6, 19.7),
}
"""JigsawRL (arXiv 2604.23838), Table 1: rollout, reference, training, tool."""

MEDIANS = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)
SIGMAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
PASSES = 2
"""Forward passes of the reference stage."""
STEPS = 3

Factors = tuple[float, float]
"""On medians and on sigmas."""
Seconds = Mapping[str, float]


def measure() -> Measured:
    """Mean error of the shares, in points, over the five rows that were left out."""
    return evaluate(list(product(MEDIANS, SIGMAS)), steps=STEPS)


def evaluate(grid: list[Factors], *, steps: int, sensitivity: bool = True) -> Measured:
    """With these factors to choose from."""
    took = {row: {f: stage_seconds(row, f, steps) for f in grid} for row in PAPER}
    rows: dict[str, Any] = {}
    errors: list[float] = []
    for row in PAPER:
        others = [r for r in PAPER if r != row]
        factors = best(took, others, grid, PASSES)
        ours = percent(took[row][factors], passes=PASSES)
        one = percent(took[row][best(took, others, grid, 1)], passes=1)
        own = percent(took[row][best(took, [row], grid, PASSES)], passes=PASSES)
        signed = _errors(row, ours)
        errors += [abs(e) for e in signed.values()]
        rows[row] = {
            "factors": {"median": factors[0], "sigma": factors[1]},
            "paper": dict(zip(STAGES, PAPER[row], strict=True)),
            "ours": _rounded(ours),
            "error": _rounded(signed),
            "error_with_one_pass": _rounded(_errors(row, one)),
            "error_with_its_own_lengths": _rounded(_errors(row, own)),
            "share_of_peak_that_would_fit": _implied(row, ours),
        }
    value = sum(errors) / len(errors)
    fitted = best(took, list(PAPER), grid, PASSES)
    detail: dict[str, Any] = {
        "rows": rows,
        "largest_error": max(errors),
        "fitted_on_all": {"median": fitted[0], "sigma": fitted[1]},
        "nothing_shared": {
            "qwen3-4b/search/4": "the tool's latency is in no other row: taken as assumed (FAISS)"
        },
    }
    if sensitivity:
        detail["mean_error_with_each_constant_30_percent_less_and_more"] = effects(
            lambda models: mean_error(fitted, steps, models), names(slowdown=False)
        )
    return Measured(value=value, ok=True, detail=detail)


def stage_seconds(
    row: str, factors: Factors, steps: int, models: Models = COMMITTED
) -> dict[str, float]:
    """Of a row's pipeline with scaled lengths."""
    setting = scaled(table_1()[row], factors, steps)
    return seconds(simulate(setting, isolated(), models.costs_of, mode="fluid"))


def mean_error(factors: Factors, steps: int, models: Models) -> float:
    """Over all rows with these factors, in points."""
    found = [
        abs(e)
        for row in PAPER
        for e in _errors(
            row, percent(stage_seconds(row, factors, steps, models), passes=PASSES)
        ).values()
    ]
    return sum(found) / len(found)


def scaled(setting: Setting, factors: Factors, steps: int) -> Setting:
    """The setting with all responses' medians and sigmas scaled."""

    def job(spec: JobSpec) -> JobSpec:
        response = replace(
            spec.response,
            median=spec.response.median * factors[0],
            sigma=spec.response.sigma * factors[1],
        )
        return replace(spec, response=response, steps=steps)

    return replace(setting, jobs=tuple(map(job, setting.jobs)))


def best(
    took: Mapping[str, Mapping[Factors, Seconds]],
    rows: Iterable[str],
    grid: Iterable[Factors],
    passes: int,
) -> Factors:
    """The factors with the least sum of squared errors on the rows."""
    rows = list(rows)

    def loss(factors: Factors) -> float:
        return sum(
            e * e
            for row in rows
            for e in _errors(row, percent(took[row][factors], passes=passes)).values()
        )

    return min(grid, key=loss)


def _errors(row: str, ours: Mapping[str, float]) -> dict[str, float]:
    """Ours less the paper's, in points."""
    return {stage: ours[stage] - p for stage, p in zip(STAGES, PAPER[row], strict=True)}


def _implied(row: str, ours: Mapping[str, float]) -> dict[str, float]:
    """Which share of the peak training and reference would have to reach for their time to stand
    to the rollout's as in the paper. Shown to say what decides a row; used nowhere."""
    paper = dict(zip(STAGES, PAPER[row], strict=True))
    attained = {"training": GPU.train_mfu, "reference": GPU.reference_mfu}
    return {
        stage: round(share * (ours[stage] / ours["rollout"]) / (paper[stage] / paper["rollout"]), 3)
        for stage, share in attained.items()
    }


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in values.items()}
