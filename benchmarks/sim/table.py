"""``python -m benchmarks.sim.table C1``: the last result of a simulated figure as Markdown."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.figure import RESULTS
from benchmarks.sim.stages import STAGES

OVER = ("throughput over", "utilisation over", "MFU over")
GAIN = "throughput over one run's"
FEW = 8
"""Constants that are shown: those that move a result most."""


def main() -> int:
    """Print the tables of the figures that are named."""
    tables = {"C1": c1, "C2": c2, "C3": c3, "C5": c5, "C6": c6}
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


def c3(value: float, detail: Mapping[str, Any]) -> Iterable[str]:
    """Ten runs at each size, beside the paper, its ablation, 1 to 32 runs, and the small caches."""
    sizes = detail["ten search runs"]
    yield rows(
        ["model", "against", "throughput", "utilisation", "MFU", "points less idle"],
        (
            [
                model if i == 0 else "",
                name,
                *(f"{found[what][name]:.2f} ×" for what in OVER),
                f"{100 * found['idle points less than'][name]:.0f}",
            ]
            for model, found in sizes.items()
            for i, name in enumerate(found["throughput over"])
        ),
    )
    beside = {**detail["beside the paper"]}
    beside |= {
        f"AMC12 {what}": found
        for what, found in detail["ablation, AMC12"].items()
        if isinstance(found, Mapping) and "paper" in found
    }
    beside |= {
        f"others' {what}": found for what, found in detail["a replication by others"].items()
    }
    yield rows(
        ["ten runs", "paper", "ours", "error"],
        (
            [what, f"{f['paper']:.2f}", f"{f['ours']:.2f}", f"{f['error']:+.0%}"]
            for what, f in beside.items()
        ),
    )
    yield rows(
        ["runs", "throughput over one run's", "step stretch", "TTFS, s", "TPTS, s", "busy",
         "rounds' throughput", "adaptive's", "adaptive's TPTS"],
        (
            [
                n,
                f"{f[GAIN]:.2f} ×",
                f"{f['step stretch']:.2f}",
                f"{f['TTFS']:.0f}",
                f"{f['TPTS']:.0f}",
                f"{f['utilisation']:.0%}",
                f"{f['multi-lora-sync: ' + GAIN]:.2f} ×",
                f"{f['adaptive: ' + GAIN]:.2f} ×",
                f"{f['adaptive: TPTS']:.0f}",
            ]
            for n, f in detail["1 to 32 runs"].items()
        ),
    )  # fmt: skip
    region = detail["where sharing loses"]
    ways = list(next(iter(region.values())))
    yield rows(
        ["part of the cache that is left", *ways],
        ([cache, *(f"{f[way]:.2f}" for way in ways)] for cache, f in region.items()),
    )
    yield _changes(detail["sensitivity of the gain over single-disaggregated"])


def c5(value: float, detail: Mapping[str, Any]) -> Iterable[str]:
    """Each scheme's outcome, our lead, what each mechanism is worth, and sensitivity."""
    ahead = detail["ours ahead (makespan over ours)"]
    yield rows(
        ["scheme", "its best arrangement", "makespan, s", "over ours", "mean completion, s",
         "aggregate", "worst stretch", "mean", "busy", "MFU", "moves"],
        (
            [
                name,
                f["arrangement"],
                f"{f['makespan']:.0f}",
                f"{ahead[name]:.2f}" if name in ahead else "1",
                f"{f['mean completion']:.0f}",
                f"{f['aggregate over one after the other']:.1f} ×",
                f"{f['worst stretch']:.2f}",
                f"{f['mean stretch']:.2f}",
                f"{f['utilisation']:.0%}",
                f"{f['MFU']:.1%}",
                f"{f['switch, share of device time']:.1%}",
            ]
            for name, f in detail["schemes"].items()
        ),
    )  # fmt: skip
    loads = detail["by number of jobs of each kind"]
    names = list(ahead)
    yield rows(
        ["jobs of each kind", *names],
        ([n, *(f"{f[name]:.2f}" for name in names)] for n, f in loads.items()),
    )
    yield rows(
        ["without", "makespan over ours"],
        ([what, f"{f:.2f}"] for what, f in detail["each mechanism left out"].items()),
    )
    yield _changes(detail["sensitivity of the least lead over a paper"])


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


def _changes(found: Mapping[str, Any]) -> str:
    few = list(found["change at -30 % and +30 %"].items())[:FEW]
    head = [f"{found['of']:.2f} with", "−30 %", "+30 %"]
    return rows(head, ([name, f"{less:+.1%}", f"{more:+.1%}"] for name, (less, more) in few))


def _sensitivity(found: Mapping[str, list[float]], base: float | None, what: str) -> str:
    few = list(found.items())[:FEW]
    head = [f"{what} with" if base is None else f"{what} ({base:.2f}) with", "−30 %", "+30 %"]
    return rows(head, ([name, f"{less:.2f}", f"{more:.2f}"] for name, (less, more) in few))


if __name__ == "__main__":
    sys.exit(main())
