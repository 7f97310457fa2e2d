"""Four agentic search jobs with everything fixed: prompts, lengths, calls; only latency varies."""

from benchmarks.live.launches import specs_of
from plait.jobs.spec import JobSpec

CALLS = 5
"""Tool calls of every sample."""


def search_jobs(
    latency_s: float, *, steps: int = 3, n_jobs: int = 4, samples: int = 4
) -> tuple[JobSpec, ...]:
    """SmolLM2 jobs of one group a step: ``CALLS`` short queries a sample, and what they found."""
    jobs = "\n".join(f"  - {{name: search-{i}, seed: {i}}}" for i in range(n_jobs))
    return specs_of(
        f"""
model: smollm2-135m
defaults:
  groups: 1
  samples: {samples}
  steps: {steps}
  sampling: {{ignore_eos: true}}
  limits: {{max_prompt_tokens: 512, max_tokens: 4}}
  optimizer: {{learning_rate: 1.0e-5}}
  environment:
    name: search
    examples: 0
    fixed_calls: {CALLS}
    result_tokens: [8, 12]
    latency_s: {latency_s}
jobs:
{jobs}
"""
    )
