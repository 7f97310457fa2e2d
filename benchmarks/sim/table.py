"""``python -m benchmarks.sim.table C1``: the last result of a simulated figure as Markdown."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.figure import RESULTS
from benchmarks.sim.stages import STAGES

FEW = 8
"""Constants that are shown: those that move a result most."""


def main() -> int:
    """Print the tables of the figures that are named."""
    tables = {"C1": c1, "C2": c2, "C6": c6}
    for name in sys.argv[1:]:
        line = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[-1]
        result = json.loads(line)
        print("\n\n".join(tables[name](result["value"], result["detail"])))
    return 0


def c1(value: float, detail: Mapping[str, Any]) -> Iterable[str]:
    """Shares by row, and what moves their error."""
    yield rows(
        ["row", "stage", "paper", "ours", "error", "one pass", "its own lengths"],
        (
            [
                row if stage == STAGES[0] else "",
                stage,
                f"{found['paper'][stage]:.1f}",
                f"{found['ours'][stage]:.1f}",
                f"{found['error'][stage]:+.1f}",
                f"{found['error_with_one_pass'][stage]:+.1f}",
                f"{found['error_with_its_own_lengths'][stage]:+.1f}",
            ]
            for row, found in detail["rows"].items()
            for stage in STAGES
            if found["paper"][stage] or abs(found["ours"][stage]) >= 0.1
        ),
    )
    yield rows(
        [
            "row",
            "median ×",
            "sigma ×",
            "training's share of the peak that would fit",
            "reference's",
        ],
        (
            [
                row,
                f"{found['factors']['median']:g}",
                f"{found['factors']['sigma']:g}",
                f"{found['share_of_peak_that_would_fit']['training']:.2f}",
                f"{found['share_of_peak_that_would_fit']['reference']:.2f}",
            ]
            for row, found in detail["rows"].items()
        ),
    )
    name = "mean_error_with_each_constant_30_percent_less_and_more"
    yield _sensitivity(detail[name], value, "mean error")


def c2(value: float, detail: Mapping[str, Any]) -> Iterable[str]:
    """Ratios beside the paper's, by cell, ablation, variants and sensitivity."""
    yield rows(
        ["ratio", "paper", "ours", "error"],
        (
            [name, f"{found['paper']:.2f}", f"{found['ours']:.2f}", f"{found['error']:+.0%}"]
            for name, found in detail["table"].items()
        ),
    )
    yield rows(
        ["pair", "over Verl", "RollMux", "MuxServe", "split devices", "stretch", "MFU"],
        (
            [
                name,
                f"{found['verl']:.2f}",
                _number(found["rollmux"]),
                f"{found['muxserve']:.2f}",
                _number(found["split"]),
                " ".join(f"{s:.2f}" for s in found["stretch"]),
                f"{found['mfu']:.1%}",
            ]
            for name, found in detail["fig_12"].items()
        ),
    )
    parts = list(next(iter(detail["ablation"].values())))
    yield rows(
        ["ablation", *parts],
        (
            [name, *(f"{found[part]:.2f}" for part in parts)]
            for name, found in detail["ablation"].items()
        ),
    )
    variants = detail["with_other_assumptions"]
    ratios = list(next(iter(variants.values())))
    yield rows(
        ["ratio", *variants],
        ([ratio, *(f"{found[ratio]:.2f}" for found in variants.values())] for ratio in ratios),
    )
    for cell, found in detail["over_verl_with_each_constant_30_percent_less_and_more"].items():
        yield _sensitivity(found, None, cell)


def c6(value: float, detail: Mapping[str, Any]) -> Iterable[str]:
    """Distances."""
    yield rows(
        ["setting", "bound", "distance", "without foresight"],
        (
            [
                name,
                found["binding"],
                f"{found['distance']:+.0%}",
                f"{found['distance_without_foresight']:+.0%}"
                if "distance_without_foresight" in found
                else "",
            ]
            for name, found in detail["rows"].items()
            if "distance" in found
        ),
    )


def rows(head: list[str], body: Iterable[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}"


def _sensitivity(found: Mapping[str, list[float]], base: float | None, what: str) -> str:
    few = list(found.items())[:FEW]
    head = [f"{what} with" if base is None else f"{what} ({base:.2f}) with", "−30 %", "+30 %"]
    return rows(head, ([name, f"{less:.2f}", f"{more:.2f}"] for name, (less, more) in few))


if __name__ == "__main__":
    sys.exit(main())
