"""All figures by name."""

from benchmarks.figure import Figure
from benchmarks.live import (
    a1_demo,
    a2_targets,
    a3_latency,
    a4_logprobs,
    a5_memory,
    a6_admission,
    a7_ablation,
)

_ALL = (
    Figure(
        name="A1",
        what="plait demo: aggregate speed-up of three jobs, all of which learn",
        at_least=2.0,
        minutes=5,
        measure=a1_demo.measure,
    ),
    Figure(
        name="A2",
        what="four SmolLM2 jobs until all reach their target: faster than one after the other",
        at_least=a2_targets.FASTER,
        minutes=35,
        measure=a2_targets.measure,
    ),
    Figure(
        name="A3",
        what="four search jobs by tool latency: share of the bound",
        at_least=a3_latency.OF_BOUND,
        minutes=12,
        measure=a3_latency.measure,
    ),
    Figure(
        name="A4",
        what="sampler against trainer log-probs: 1e-4 over the largest difference",
        at_least=1.0,
        minutes=3,
        measure=a4_logprobs.measure,
    ),
    Figure(
        name="A5",
        what="memory of four SmolLM2 jobs, sum of PSS: 2.5 GB over the peak",
        at_least=1.0,
        minutes=2,
        measure=a5_memory.measure,
    ),
    Figure(
        name="A6",
        what="cache at 40 % of the worst case: admission against none",
        at_least=a6_admission.AT_LEAST,
        minutes=11,
        measure=a6_admission.measure,
    ),
    Figure(
        name="A7",
        what="ablation: change of throughput without asynchrony (shown beside the paper's)",
        at_least=None,
        minutes=7,
        measure=a7_ablation.measure,
    ),
)
FIGURES = {figure.name: figure for figure in _ALL}
