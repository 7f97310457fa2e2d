"""Four agentic search jobs with everything fixed: prompts, lengths, calls; only latency varies."""

from benchmarks.live.launches import specs_of
from plait.jobs.spec import JobSpec

CALLS = 3
"""Tool calls of every sample."""


def search_jobs(
    latency_s: float, *, steps: int = 3, n_jobs: int = 4, max_tokens: int = 8
) -> tuple[JobSpec, ...]:
    """SmolLM2 jobs of 8 samples a step, ``CALLS`` calls each, every turn of ``max_tokens``."""
    jobs = "\n".join(f"  - {{name: search-{i}, seed: {i}}}" for i in range(n_jobs))
    return specs_of(
        f"""
model: smollm2-135m
defaults:
  groups: 2
  samples: 4
  steps: {steps}
  sampling: {{ignore_eos: true}}
  limits: {{max_prompt_tokens: 512, max_tokens: {max_tokens}}}
  optimizer: {{learning_rate: 1.0e-5}}
  environment:
    name: search
    examples: 0
    fixed_calls: {CALLS}
    result_tokens: [8, 24]
    latency_s: {latency_s}
jobs:
{jobs}
"""
    )
