"""A7: the paper's ablation (MARLaaS Table 4) on our search jobs: without asynchrony, and then also
without multi-LoRA rollout, throughput against the whole."""

from statistics import median

from benchmarks.figure import Measured
from benchmarks.live.launches import run
from benchmarks.live.search_jobs import search_jobs

PAPER = {"without_asynchrony": -0.66, "further_without_multi_lora": -0.13}
REPEATS = 2
LATENCY_S = 2.0


def measure() -> Measured:
    """The loss of throughput without asynchrony."""
    specs = search_jobs(LATENCY_S, steps=4)
    times: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        for name in ("plait", "multi-lora-sync", "no-multi-lora", "single-collocated"):
            times.setdefault(name, []).append(run(specs, name).wall_s)
    whole = median(times["plait"])
    change = {name: whole / median(values) - 1 for name, values in times.items()}
    # Without both, runs neither overlap nor batch: one at a time on the same machine.
    further = median(times["multi-lora-sync"]) / median(times["single-collocated"]) - 1
    return Measured(
        value=change["multi-lora-sync"],
        ok=True,
        detail={
            "seconds": times,
            "change": change,
            "further_without_both": further,
            "paper": PAPER,
        },
    )
