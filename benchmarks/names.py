"""All figures by name."""

from benchmarks.engine import (
    b3_decode,
    b4_adapters,
    b5_training,
    b6_merged,
    b7_gemm_share,
    b8_deterministic,
    b9_moved,
    b10_logprobs,
)
from benchmarks.figure import Figure
from benchmarks.gpu import decode as gpu_decode
from benchmarks.gpu import training as gpu_training
from benchmarks.live import (
    a1_demo,
    a2_targets,
    a3_latency,
    a4_logprobs,
    a5_memory,
    a6_admission,
    a7_ablation,
)
from benchmarks.peers import trl_steps, vllm_decode
from benchmarks.sim import c3_marlaas, c4_plexrl, c5_together, c7_speed

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
    Figure(
        name="B1",
        what="one job's step (8 prompts x 4 samples x 32 tokens, SmolLM2, LoRA) against TRL's",
        at_least=trl_steps.ONE_AT_LEAST,
        minutes=6,
        measure=trl_steps.one,
    ),
    Figure(
        name="B2",
        what="four such jobs at once against TRL one after another, steps per hour",
        at_least=trl_steps.FOUR_AT_LEAST,
        minutes=8,
        measure=trl_steps.four,
    ),
    Figure(
        name="B3",
        what="decode at batch 8, 32, 64 against plain transformers",
        at_least=b3_decode.AT_LEAST,
        minutes=2,
        measure=b3_decode.measure,
    ),
    Figure(
        name="B4",
        what="decode with four adapters of ranks 4, 8, 16, 32 against none",
        at_least=b4_adapters.AT_LEAST,
        minutes=2,
        measure=b4_adapters.measure,
    ),
    Figure(
        name="B5",
        what="training against a plain HF + PEFT loop: least ratio over its bar (1.65, 2)",
        at_least=1.0,
        minutes=2,
        measure=b5_training.measure,
    ),
    Figure(
        name="B6",
        what="two runs' updates in one pass against one after the other, small batches",
        at_least=b6_merged.AT_LEAST,
        minutes=2,
        measure=b6_merged.measure,
    ),
    Figure(
        name="B7",
        what="share of the GEMM rate: decode at 64 over 65 %, training over 80 %",
        at_least=1.0,
        minutes=1,
        measure=b7_gemm_share.measure,
    ),
    Figure(
        name="B8",
        what="deterministic mode: bits alone and shared; 1.15 over its cost",
        at_least=1.0,
        minutes=4,
        measure=b8_deterministic.measure,
    ),
    Figure(
        name="B9",
        what="samples moved between engines in the middle: same continuation, of 1,000",
        at_least=1000,
        minutes=4,
        measure=b9_moved.measure,
    ),
    Figure(
        name="B10",
        what="deterministic mode: share of log-probs equal to the bit in sampler and trainer",
        at_least=1.0,
        minutes=3,
        measure=b10_logprobs.measure,
    ),
    Figure(
        name="B11",
        what="decode with four adapters against vLLM's CPU build: least ratio over its bar",
        at_least=1.0,
        minutes=6,
        measure=vllm_decode.measure,
    ),
    Figure(
        name="C3",
        what="MARLaaS: ten agentic LoRA runs on 16 NPUs against one at a time (paper beside)",
        at_least=None,
        minutes=9,
        measure=c3_marlaas.measure,
    ),
    Figure(
        name="C4",
        what="PlexRL: share of the geometric ceiling that two jobs on a pool save (paper beside)",
        at_least=None,
        minutes=10,
        measure=c4_plexrl.measure,
    ),
    Figure(
        name="C5",
        what="all mechanisms together against each paper's alone: least lead",
        at_least=1.0,
        minutes=10,
        measure=c5_together.measure,
    ),
    Figure(
        name="C7",
        what="speed of deciding and of the simulator: least margin to its bar",
        at_least=1.0,
        minutes=20,
        measure=c7_speed.measure,
    ),
    Figure(
        name="G1",
        what="GPU: decode at 64 and 256, with four adapters and none, against transformers",
        at_least=1.0,
        minutes=3,
        measure=gpu_decode.measure,
    ),
    Figure(
        name="G2",
        what="GPU: a gradient of eight groups of eight against HF + PEFT",
        at_least=1.0,
        minutes=3,
        measure=gpu_training.measure,
    ),
)
FIGURES = {figure.name: figure for figure in _ALL}
