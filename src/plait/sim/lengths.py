"""Lengths: the work of one step of one job, the same whatever scheme runs it.

What a sample gets depends on (seed, job, step, its place) and on nothing else: a job is known by
its name, each quantity has a generator of its own, and generators are read in the order of the
samples. So leaving a job out, or adding samples behind, changes nothing for the others.

Long problems are long for all samples of their group. Each draw goes through a standard normal
√ρ · (of its group) + √(1 − ρ) · (of its own), whose quantile is looked up in the distribution
(Gaussian copula); ρ is the correlation within a group. Turns are drawn alike: long problems have
more of them.
"""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import erf, exp, isfinite, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import ConfigError
from plait.sim.spec import JobSpec, Lengths, RecordedStep

GROUP_CORRELATION = 0.5
"""Share of the variance of (log) length that lies between prompts, the rest between samples of
one prompt. An assumption: repeated answers to one prompt spread widely, yet far less than answers
to different prompts (CASTILLO, arXiv 2505.16881, Fig. 1); neither 0 nor 1 is tenable, and the
middle is taken. To be varied where a result may hang on it."""

MOST_TURNS = 32
"""Turns that are drawn for each sample, whether it gets so far or not."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StepDraw:
    """Tokens and waits of one step; samples in group order. Without slots, for what is summed up
    once: a draw is rolled out many times. In tuples all through: the garbage collector goes through
    the lists of a large cluster's samples again and again, and forgets tuples of numbers."""

    prompts: tuple[int, ...]
    """Of each group."""
    responses: tuple[tuple[int, ...], ...]
    """Of each sample, by turn."""
    waits_s: tuple[tuple[float, ...], ...]
    """Of each sample, between its turns."""
    results: tuple[tuple[int, ...], ...]
    """Tokens that come back with each wait."""
    recorded: RecordedStep | None = None
    """Where this is no draw."""

    @property
    def n_samples(self) -> int:
        return len(self.responses)

    @property
    def group_size(self) -> int:
        return self.n_samples // len(self.prompts)

    def tokens(self, sample: int, group_size: int) -> int:
        """Of a sample in all: prompt, responses and what tools returned."""
        prompt = self.prompts[sample // group_size]
        return prompt + sum(self.responses[sample]) + sum(self.results[sample])

    def total_tokens(self, group_size: int) -> int:
        """Of all samples."""
        return sum(self.prompts) * group_size + self._beyond_prompts

    @cached_property
    def _beyond_prompts(self) -> int:
        return sum(map(sum, self.responses)) + sum(map(sum, self.results))


def draw_step(
    spec: JobSpec, step: int, seed: int = 0, *, correlation: float = GROUP_CORRELATION
) -> StepDraw:
    """The work of ``step`` of the job; its own seed and the workload's both count."""
    if step < len(spec.recorded):
        return _recorded(spec.recorded[step])
    if not 0.0 <= correlation <= 1.0:
        raise ConfigError(f"correlation within a group is {correlation}: give 0 to 1")

    def rng(what: str) -> np.random.Generator:
        key = f"{seed}/{spec.seed}/{step}/{what}/{spec.name}".encode()
        digest = blake2b(key, digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))

    n = spec.groups * spec.samples
    of_group = np.repeat(rng("group").standard_normal(spec.groups), spec.samples)

    def normals(what: str, columns: int) -> Floats:
        own = rng(what).standard_normal((n, columns))
        return sqrt(correlation) * of_group[:, None] + sqrt(1.0 - correlation) * own

    prompts_G = _tokens(spec.prompt, rng("prompt").standard_normal(spec.groups), step)
    prompts = tuple(prompts_G.tolist())
    most = len(spec.turns)
    if most == 1:
        lengths = _tokens(spec.response, normals("response", 1)[:, 0], step).tolist()
        limit = spec.limit or max(lengths)
        responses = tuple((min(length, limit),) for length in lengths)
        none = ((),) * n
        return StepDraw(prompts=prompts, responses=responses, waits_s=none, results=none)
    shares = np.cumsum(spec.turns) / sum(spec.turns)
    quantiles = _quantiles(normals("turns", 1)[:, 0])
    turns = (1 + np.searchsorted(shares, quantiles, side="right")).clip(max=most).tolist()
    # As many columns for each job, so that no draw depends on how many turns are possible.
    lengths = _tokens(spec.response, normals("response", MOST_TURNS)[:, :most], step).tolist()
    tool = spec.tool
    latency_s, jitter = (tool.latency_s, tool.jitter) if tool is not None else (0.0, 0.0)
    waits = latency_s * (1.0 + jitter * rng("wait").uniform(-1.0, 1.0, (n, MOST_TURNS))[:, :most])
    back = np.zeros((n, most), dtype=np.int64)
    if tool is not None and tool.result is not None:
        back = _tokens(tool.result, rng("result").standard_normal((n, MOST_TURNS))[:, :most], step)
    waits_s, results = waits.tolist(), back.tolist()
    if spec.limit:
        turns = [
            _cut(row, more, k, spec.limit)
            for row, more, k in zip(lengths, results, turns, strict=True)
        ]
    return StepDraw(
        prompts=prompts,
        responses=tuple(tuple(row[:k]) for row, k in zip(lengths, turns, strict=True)),
        waits_s=tuple(tuple(row[: k - 1]) for row, k in zip(waits_s, turns, strict=True)),
        results=tuple(tuple(row[: k - 1]) for row, k in zip(results, turns, strict=True)),
    )


def _recorded(step: RecordedStep) -> StepDraw:
    return StepDraw(
        prompts=step.prompts,
        responses=step.responses,
        waits_s=step.waits_s,
        results=step.results,
        recorded=step,
    )


def mean_tokens(lengths: Lengths) -> float:
    """Expected tokens before drift, within the limits: the mean of a thousand quantiles."""
    quantiles = (np.arange(1000) + 0.5) / 1000
    return float(_at(lengths, quantiles, step=0).mean())


def most_tokens(lengths: Lengths) -> int:
    """The longest that can be drawn."""
    most = lengths.most
    if lengths.drift <= 0 and lengths.kind == "fixed":
        most = min(most, max(lengths.least, round(lengths.median)))
    if lengths.drift <= 0 and lengths.kind == "empirical":
        most = min(most, max(lengths.least, *lengths.values))
    return max(1, most)


def longest_sample(spec: JobSpec) -> int:
    """Tokens of the longest sample that the job can draw, prompt and all turns."""
    turns = len(spec.turns)
    result = spec.tool.result if spec.tool is not None else None
    returned = most_tokens(result) if result is not None else 0
    rest = turns * most_tokens(spec.response) + (turns - 1) * returned
    return most_tokens(spec.prompt) + (min(rest, spec.limit) if spec.limit else rest)


def check_lengths(where: str, lengths: Lengths) -> None:
    """ConfigError if they cannot be drawn from."""
    if not 0 <= lengths.least <= lengths.most:
        raise ConfigError(f"{where}: least {lengths.least} … most {lengths.most} is empty")
    for name in ("median", "sigma"):
        value = getattr(lengths, name)
        if not (isfinite(value) and value >= 0):
            raise ConfigError(f"{where}.{name} is {value}: give 0 or more")
    if not (isfinite(lengths.drift) and lengths.drift > -1):
        raise ConfigError(f"{where}.drift is {lengths.drift}: give a change per step, e.g. 0.002")
    if lengths.kind == "empirical" and (not lengths.values or min(lengths.values) < 0):
        raise ConfigError(f"{where} is empirical: give values, none of them negative")
    if lengths.kind not in ("fixed", "lognormal", "uniform", "empirical"):
        raise ConfigError(
            f"{where}.kind is {lengths.kind!r}: choose fixed, lognormal, uniform or empirical"
        )


def _cut(responses: list[int], results: list[int], turns: int, limit: int) -> int:
    """Turns that fit the limit; the last of them is shortened in ``responses``."""
    left = limit
    for i in range(turns):
        if responses[i] >= left:
            responses[i] = left
            return i + 1
        left -= responses[i] + results[i]
        if left < 1:
            return i + 1
    return turns


def _tokens(lengths: Lengths, normals: Floats, step: int) -> NDArray[np.int64]:
    """Whole tokens, each at least 1, by standard normals of any shape."""
    if lengths.kind == "lognormal":
        # Without the detour over quantiles, which costs the far tail its precision.
        values = lengths.median * np.exp(lengths.sigma * normals)
        values = _limited(lengths, values, step)
    elif lengths.kind == "fixed":
        values = _limited(lengths, np.full(normals.shape, float(lengths.median)), step)
    else:
        values = _at(lengths, _quantiles(normals), step)
    return np.rint(values).astype(np.int64)


def _at(lengths: Lengths, quantiles: Floats, step: int) -> Floats:
    if lengths.kind == "fixed":
        values = np.full(quantiles.shape, float(lengths.median))
    elif lengths.kind == "lognormal":
        values = lengths.median * np.exp(lengths.sigma * _normal_quantiles(quantiles))
    elif lengths.kind == "uniform":
        values = lengths.least + quantiles * (lengths.most - lengths.least)
    else:
        check_lengths("lengths", lengths)
        sorted_values = np.sort(np.asarray(lengths.values, dtype=np.float64))
        places = (quantiles * len(sorted_values)).astype(np.int64)
        values = sorted_values[places.clip(max=len(sorted_values) - 1)]
    return _limited(lengths, values, step)


def _limited(lengths: Lengths, values: Floats, step: int) -> Floats:
    if lengths.drift:
        # Capped: a thousand steps at 1 % would be no longer finite work.
        values = values * exp(min(step * np.log1p(lengths.drift), 50.0))
    return values.clip(max(1, lengths.least), max(1, lengths.most))


def _quantiles(normals: Floats) -> Floats:
    flat = [0.5 * (1.0 + erf(x / sqrt(2.0))) for x in normals.ravel().tolist()]
    return np.array(flat).reshape(normals.shape)


def _normal_quantiles(quantiles: Floats) -> Floats:
    normal = NormalDist()
    return np.array([normal.inv_cdf(q) for q in quantiles.ravel().tolist()]).reshape(
        quantiles.shape
    )
