"""A7: what each mechanism is worth.

The paper's ablation (MARLaaS Table 4) on our search jobs, without asynchrony and then also without
multi-LoRA rollout, and ours: each mechanism alone switched off.
"""

from benchmarks.figure import Measured
from benchmarks.live.launches import run
from benchmarks.live.search_jobs import search_jobs

PAPER = {"without_asynchrony": -0.66, "further_without_multi_lora": -0.13}
LATENCY_S, STEPS = 1.0, 2


def measure() -> Measured:
    """The loss of throughput without asynchrony."""
    specs = search_jobs(LATENCY_S, steps=STEPS)
    seconds = {
        "whole": run(specs, "plait").wall_s,
        "without_asynchrony": run(specs, "multi-lora-sync").wall_s,
        "without_both": run(specs, "single-collocated").wall_s,
        "without_multi_lora": run(specs, "no-multi-lora").wall_s,
        "without_elastic_threads": run(specs, "plait", elastic=False).wall_s,
        "whole_again": run(specs, "plait").wall_s,
    }
    whole = (seconds["whole"] + seconds["whole_again"]) / 2
    change = {name: whole / s - 1 for name, s in seconds.items() if not name.startswith("whole")}
    # Without both, runs neither overlap nor batch: one at a time on the same machine.
    further = seconds["without_asynchrony"] / seconds["without_both"] - 1
    return Measured(
        value=change["without_asynchrony"],
        ok=True,
        spread=abs(seconds["whole"] - seconds["whole_again"]) / 2 / whole,
        detail={
            "seconds": seconds,
            "change": change,
            "further_without_both": further,
            "paper": PAPER,
        },
    )
