"""Told: what the papers' figures are compared by, read off an outcome."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from plait.sim.outcome import Outcome


def steps_per_hour(outcome: Outcome) -> float:
    """Of all jobs together."""
    return 3600.0 * sum(len(job.step_ends_s) for job in outcome.jobs) / outcome.makespan_s


def ttfs_s(outcome: Outcome) -> float:
    """Mean time from submission to the end of the first step."""
    return fmean(job.step_ends_s[0] - job.arrival_s for job in outcome.jobs)


def tpts_s(outcome: Outcome) -> float:
    """Mean time per training step, from when a job was first served."""
    return fmean((job.step_ends_s[-1] - job.began_s) / len(job.step_ends_s) for job in outcome.jobs)


def device_s_per_step(outcome: Outcome) -> float:
    """Device seconds of the whole cluster, and of what jobs brought along, by step."""
    whole = outcome.n_devices * outcome.makespan_s + outcome.brought_device_s
    return whole / sum(len(job.step_ends_s) for job in outcome.jobs)


def beside(paper: float, ours: float) -> dict[str, float]:
    """A figure of a paper, ours, and how far off ours is, relative and signed."""
    return {"paper": paper, "ours": rounded(ours), "error": rounded((ours - paper) / abs(paper))}


def rounded(value: Any, digits: int = 4) -> Any:
    """Numbers of a detail to some digits, at any depth."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {str(k): rounded(v, digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v, digits) for v in value]
    return value
