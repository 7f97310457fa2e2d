"""A4: log-probs of sampled tokens, sampler against trainer, in fp32, after real updates."""

from benchmarks.figure import Measured
from benchmarks.live.launches import run, specs_of

JOBS = """
model: {model}
groups: 4
samples: 4
steps: 4
limits: {{max_tokens: 24}}
optimizer: {{learning_rate: 1.0e-3}}
{environment}
name: {name}
"""
AT_MOST = 1e-4


def measure() -> Measured:
    """The largest difference over all sampled tokens of single- and multi-turn jobs."""
    sets = {
        "chain_sum": "environment: {name: reasoning-gym, dataset: chain_sum}",
        "multi-turn": "environment: {name: multi-turn}",
    }
    worst = {}
    for name, environment in sets.items():
        text = JOBS.format(model="smollm2-135m", environment=environment, name=name)
        done = run(specs_of(text), "plait")
        found = [
            row["sampler_trainer_logprob_max_diff"]
            for row in done.launch.jobs[0].steps
            if row["sampler_trainer_logprob_max_diff"] is not None
        ]
        worst[name] = max(found)
    largest = max(worst.values())
    return Measured(
        value=AT_MOST / largest,
        ok=largest <= AT_MOST,
        detail={"at_most": AT_MOST, "largest": largest, **worst},
    )
