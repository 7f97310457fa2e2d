"""Bounds: how large a simulation may be. What is beyond them is a mistake in the numbers, and would
fill the memory, never end, or stand still because the clock no longer resolves a step.
"""

from plait.core.errors import ConfigError
from plait.sim.spec import JobSpec, Lengths, Setting

MOST_COUNT = 1_000_000_000
"""Of anything that is only counted, as in job files."""
MOST_SECONDS = 1e9
"""Of anything that lasts or is waited for: thirty years, which the clock resolves to 0.1 µs."""
END_S = 1e10
"""Of the virtual clock, which resolves 2 µs there: shorter steps would no longer move it."""
MOST_DEVICES = 1_000_000
"""Of a cluster; each is held by itself."""
MOST_JOBS = 100_000
MOST_STEPS = 1_000_000
"""Of a job; the end of each is kept."""
MOST_STEP_SAMPLES = 1_000_000
"""Of one step of one job, which are drawn at once; as in job files."""
MOST_SAMPLES = 10_000_000_000
"""Of all steps of all jobs: days of computing, even in fluid mode."""


def check_bounds(setting: Setting) -> None:
    """ConfigError for a setting too large to be simulated."""
    n_devices = sum(group.n_devices for group in setting.cluster.groups)
    _at_most("the cluster has", n_devices, MOST_DEVICES, "devices")
    check_jobs(len(setting.jobs))
    samples = 0
    for spec in setting.jobs:
        _check_job(spec)
        samples += spec.steps * spec.groups * spec.samples
    _at_most("all steps of all jobs have", samples, MOST_SAMPLES, "samples")


def check_jobs(n: int) -> None:
    """ConfigError for more jobs than can be simulated."""
    _at_most("there are", n, MOST_JOBS, "jobs")


def _check_job(spec: JobSpec) -> None:
    where = f"job {spec.name}:"
    _at_most(f"{where} a step has", spec.groups * spec.samples, MOST_STEP_SAMPLES, "samples")
    _at_most(f"{where} steps is", spec.steps, MOST_STEPS)
    for name in ("staleness", "limit"):
        _at_most(f"{where} {name} is", getattr(spec, name), MOST_COUNT)
    seconds = {"arrival_s": spec.arrival_s, "reward_s": spec.reward_s}
    tokens = {"prompt": _most(spec.prompt), "response": _most(spec.response)}
    if (tool := spec.tool) is not None:
        seconds["tool.latency_s"] = tool.latency_s
        tokens["tool.result"] = _most(tool.result) if tool.result is not None else 0
    for i, step in enumerate(spec.recorded):
        seconds[f"recorded[{i}]"] = max(
            step.reward_s, *(max(waits_s, default=0.0) for waits_s in step.waits_s)
        )
        tokens[f"recorded[{i}]"] = max(
            max(counts, default=0) for counts in (step.prompts, *step.responses, *step.results)
        )
    for name, most in seconds.items():
        _at_most(f"{where} {name} has", most, MOST_SECONDS, "seconds")
    for name, most in tokens.items():
        _at_most(f"{where} {name} has", most, MOST_COUNT, "tokens")


def _most(lengths: Lengths) -> float:
    return max(lengths.most, lengths.median, *lengths.values)


def _at_most(what: str, value: float, most: float, unit: str = "") -> None:
    if value > most:
        raise ConfigError(f"{what} {value:,.12g} {unit}".rstrip() + f": give at most {most:,.12g}")
