"""B1 and B2: steps of 8 prompts × 4 samples × exactly 32 new tokens, LoRA rank 8, against TRL.

B1: one job's step against TRL's. B2: four such jobs at once against TRL, one after another. Both
sides get the same prompts, two threads and no evaluation; of the batch sizes that TRL is tried
with, the faster counts.
"""

import functools
import json
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.figure import Measured
from benchmarks.live.launches import run, specs_of
from benchmarks.peers.environment import TRL
from plait.models.registry import resolve

PROMPTS, SAMPLES, NEW, RANK = 8, 4, 32, 8
THREADS = 2
BATCHES = (32, 16)
"""Sequences that TRL's training pass takes at a time."""
TRL_STEPS, OUR_STEPS = 3, 5
ONE_AT_LEAST, FOUR_AT_LEAST = 3.0, 3.5

JOBS = """
model: smollm2-135m
defaults:
  groups: {groups}
  samples: {samples}
  steps: {steps}
  limits: {{max_tokens: {new}}}
  sampling: {{ignore_eos: true}}
  adapter: {{rank: {rank}, alpha: {alpha}}}
  optimizer: {{learning_rate: 1.0e-5}}
  environment: {{name: dataset, file: {file}, prompt: prompt, answer: null, eval_fraction: 0}}
  rewards: [{{function: "rewards:by_text"}}]
jobs: [{jobs}]
"""


def one() -> Measured:
    """B1."""
    return _against_trl(1, ONE_AT_LEAST)


def four() -> Measured:
    """B2."""
    return _against_trl(4, FOUR_AT_LEAST)


def _against_trl(n_jobs: int, bar: float) -> Measured:
    folder = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    rows = [json.dumps({"prompt": p}) for p in prompts()]
    (folder / "prompts.jsonl").write_text("\n".join(rows) + "\n")
    theirs, tokens = _trl()
    step_s, our_tokens = _ours(n_jobs, folder / "prompts.jsonl")
    best = min(theirs.values())
    ratio = best / step_s
    return Measured(
        value=ratio,
        ok=ratio >= bar,
        detail={
            "jobs": n_jobs,
            "seconds_per_step": step_s,
            "trl_seconds_per_step": best,
            "trl_by_batch": theirs,
            "tokens": our_tokens,
            "trl_tokens": tokens,
        },
    )


@functools.cache
def _trl() -> tuple[dict[int, float], int]:
    """Seconds of TRL's median step by batch size, the first step left out; tokens of a step."""
    file = Path(tempfile.mkdtemp(prefix="plait-bench-")) / "prompts.json"
    file.write_text(json.dumps(prompts()))
    model, seconds, tokens = resolve("smollm2-135m"), {}, 0
    for batch in BATCHES:
        numbers = [TRL_STEPS, SAMPLES, NEW, RANK, batch]
        arguments = [str(model), str(file), *map(str, numbers)]
        found = TRL.run("trl_steps.py", arguments, threads=THREADS)
        seconds[batch] = median(found["seconds"][1:])
        tokens = max(found["tokens"])
    return seconds, tokens


def prompts() -> list[str]:
    """Questions that are 38 or 39 tokens long with the model's template around them."""
    return [f"What is {i + 3} plus {2 * i + 5}?" for i in range(PROMPTS)]


def _ours(n_jobs: int, file: Path) -> tuple[float, float]:
    """Seconds per step of all jobs together, from the end of the first job's first step to the end;
    tokens of a step."""
    text = JOBS.format(
        groups=PROMPTS,
        samples=SAMPLES,
        steps=OUR_STEPS,
        new=NEW,
        rank=RANK,
        alpha=2 * RANK,
        file=file,
        jobs=", ".join(f"{{name: j{i}, seed: {i}}}" for i in range(n_jobs)),
    )
    here = {"base_dir": str(Path(__file__).parent)}
    specs = [spec.model_copy(update=here) for spec in specs_of(text)]
    jobs = run(specs, "plait", cores=THREADS).launch.jobs
    ends = [[row["t"] for row in job.steps] for job in jobs]
    n_steps = sum(len(times) - 1 for times in ends)
    seconds = max(times[-1] for times in ends) - min(times[0] for times in ends)
    row = jobs[0].steps[-1]
    return seconds / n_steps, row["tokens_sampled"]
