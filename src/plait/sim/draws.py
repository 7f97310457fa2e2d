"""Draws: the work of one step of one job, the same whatever scheme runs it.

A generator is made for each (seed, job, step) and read in the order of the samples, so what a
sample gets depends on nobody's schedule. A job is known by its name: leaving others out of a
workload changes nothing for it.
"""

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from plait.core.errors import ConfigError
from plait.sim.spec import JobSpec, Lengths

Rng = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDraw:
    """Tokens and waits of one step; samples in group order."""

    prompts: list[int]
    """Of each group."""
    responses: list[list[int]]
    """Of each sample, by turn."""
    waits_s: list[list[float]]
    """Of each sample, between its turns."""
    results: list[list[int]]
    """Tokens that come back with each wait."""

    @property
    def n_samples(self) -> int:
        return len(self.responses)

    def tokens(self, sample: int, group_size: int) -> int:
        """Of a sample in all: prompt, responses and what tools returned."""
        prompt = self.prompts[sample // group_size]
        return prompt + sum(self.responses[sample]) + sum(self.results[sample])

    def total_tokens(self, group_size: int) -> int:
        """Of all samples."""
        prompts = sum(self.prompts) * group_size
        return prompts + sum(map(sum, self.responses)) + sum(map(sum, self.results))


def draw_step(spec: JobSpec, step: int, seed: int = 0) -> StepDraw:
    """The work of ``step`` of the job."""
    rng = np.random.default_rng((seed, spec.seed, crc32(spec.name.encode()), step))
    n = spec.groups * spec.samples
    prompts = draw_tokens(spec.prompt, rng, spec.groups, step)
    if len(spec.turns) <= 1:
        responses = [[tokens] for tokens in draw_tokens(spec.response, rng, n, step)]
        return StepDraw(prompts=prompts, responses=responses, waits_s=[[]] * n, results=[[]] * n)
    shares = np.cumsum(spec.turns) / sum(spec.turns)
    n_turns = (1 + np.searchsorted(shares, rng.random(n), side="right")).clip(max=len(spec.turns))
    most = len(spec.turns)
    lengths = draw_tokens(spec.response, rng, n * most, step)
    jitter = (2.0 * rng.random(n * most) - 1.0).tolist()
    tool = spec.tool
    returned = [0] * (n * most)
    if tool is not None and tool.result is not None:
        returned = draw_tokens(tool.result, rng, n * most, step)
    latency_s = tool.latency_s if tool is not None else 0.0
    spread = tool.jitter if tool is not None else 0.0
    responses, waits_s, results = [], [], []
    for i, turns in enumerate(n_turns.tolist()):
        at = i * most
        responses.append(lengths[at : at + turns])
        waits_s.append([latency_s * (1.0 + spread * x) for x in jitter[at : at + turns - 1]])
        results.append(returned[at : at + turns - 1])
    return StepDraw(prompts=prompts, responses=responses, waits_s=waits_s, results=results)


def draw_tokens(lengths: Lengths, rng: Rng, n: int, step: int) -> list[int]:
    """``n`` token counts at a step of the job; each at least 1."""
    if lengths.kind == "fixed":
        values = np.full(n, lengths.median)
    elif lengths.kind == "lognormal":
        values = lengths.median * np.exp(lengths.sigma * rng.standard_normal(n))
    elif lengths.kind == "uniform":
        values = rng.uniform(lengths.least, lengths.most, n)
    elif lengths.kind == "empirical" and lengths.values:
        values = np.asarray(lengths.values, dtype=float)[rng.integers(len(lengths.values), size=n)]
    else:
        raise ConfigError(
            f"lengths of kind {lengths.kind!r}: choose fixed, lognormal, uniform, or empirical "
            "with values"
        )
    if lengths.drift:
        values = values * (1.0 + lengths.drift) ** step
    whole: list[int] = (
        np.rint(values).clip(max(1, lengths.least), lengths.most).astype(int).tolist()
    )
    return whole


def most_tokens(lengths: Lengths) -> int:
    """The longest that can be drawn."""
    if lengths.drift > 0:
        return lengths.most
    if lengths.kind == "fixed":
        return min(lengths.most, max(lengths.least, round(lengths.median)))
    if lengths.kind == "empirical":
        return min(lengths.most, max(lengths.values, default=lengths.most))
    return lengths.most


def longest_sample(spec: JobSpec) -> int:
    """Tokens of the longest sample that a job can draw, prompt and all turns."""
    turns = max(1, len(spec.turns))
    result = spec.tool.result if spec.tool is not None else None
    returned = most_tokens(result) if result is not None else 0
    return most_tokens(spec.prompt) + turns * most_tokens(spec.response) + (turns - 1) * returned
