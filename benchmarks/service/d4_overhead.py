"""D4: a step through the service against the same step in ``plait run``: 8 prompts × 4 samples ×
32 new tokens, LoRA rank 8, SmolLM2, strictly on-policy, two cores.

Through the service twice: as a job that is handed in over HTTP, and as a script with the Tinker SDK
that does what a job does (snapshot, sample, gradient, step), whose own work counts. The three go in
turns. A step is timed from end to end of a step; the first is left out.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

from benchmarks.figure import Measured
from benchmarks.live.launches import run, specs_of, spread
from benchmarks.peers.trl_steps import NEW, PROMPTS, RANK, SAMPLES, prompts
from benchmarks.service.clients import drive
from benchmarks.service.jobs import submitted_steps
from benchmarks.service.servers import CORES, Served, plait_serve
from plait.models.registry import resolve
from plait.models.tokenizer import Tokenizer

STEPS, ROUNDS = 5, 3
AT_MOST = 1.10
JOB = f"""
name: step
model: smollm2-135m
groups: {PROMPTS}
samples: {SAMPLES}
steps: {STEPS}
limits: {{max_tokens: {NEW}}}
sampling: {{ignore_eos: true}}
adapter: {{rank: {RANK}, alpha: {2 * RANK}}}
optimizer: {{learning_rate: 1.0e-5}}
algorithm: {{name: reinforce++, loss: importance_sampling}}
environment: {{name: dataset, file: FILE, prompt: prompt, answer: answer, eval_fraction: 0}}
rewards: [{{name: contains}}]
"""
"""Rewards are compared over the whole batch, so that every sample is trained on."""


def measure() -> Measured:
    """The bar over the greater of the two ratios."""
    seconds: dict[str, list[float]] = {"plait run": [], "job": [], "sdk": []}
    tokenizer = Tokenizer(resolve("smollm2-135m"))
    ids = [list(tokenizer.prompt(text)) for text in prompts()]
    for _ in range(ROUNDS):
        seconds["plait run"].append(_run())
        with plait_serve(cores=CORES) as served:
            seconds["job"].append(_job(served))
            seconds["sdk"].append(_sdk(served, ids))
    middle = {name: median(times) for name, times in seconds.items()}
    ratios = {name: middle[name] / middle["plait run"] for name in ("job", "sdk")}
    worst = max(ratios.values())
    return Measured(
        value=AT_MOST / worst,
        ok=worst <= AT_MOST,
        spread=max(spread(times) for times in seconds.values()),
        detail={"seconds_per_step": middle, "over_plait_run": ratios, "all": seconds},
    )


def _run() -> float:
    file = Path(mkdtemp(prefix="plait-bench-")) / "prompts.jsonl"
    file.write_text(_rows())
    (job,) = run(specs_of(JOB.replace("FILE", str(file))), "plait", cores=CORES).launch.jobs
    return _per_step([row["t"] for row in job.steps])


def _job(served: Served) -> float:
    text = JOB.replace("FILE", "prompts.jsonl")
    rows = submitted_steps(served, text, {"prompts.jsonl": _rows()})
    return _per_step([row["t"] for row in rows])


def _rows() -> str:
    rows = [{"prompt": text, "answer": str(3 * i + 8)} for i, text in enumerate(prompts())]
    return "".join(json.dumps(row) + "\n" for row in rows)


def _sdk(served: Served, ids: list[list[int]]) -> float:
    found = drive(
        served,
        "clients.py",
        phases=["loop"],
        steps=STEPS - 1,
        warmup=1,
        rank=RANK,
        samples=SAMPLES,
        loop_tokens=NEW,
        lr=1e-5,
        prompt_ids=ids,
    )
    return float(median(found["loop"]["steps_s"][0]))


def _per_step(ends: Sequence[float]) -> float:
    """The median time from a step's end to the next one's."""
    return median(b - a for a, b in pairwise(ends))
