"""Summary: what a simulation's outcome comes to, as numbers.

*Stretch* is a job's time per step shared over alone. *Aggregate speed-up* is the time of all jobs
alone, added up, over the makespan: jobs one after another come to 1, and where all run throughout
it is the sum of the inverse stretches. *Alone* is what the caller gives: the same job by itself
under the same costs.

Invariants: figures that nobody can know (stretch without a run alone, cost without a price) are
``None``, never 0. Left to others: pictures (``figures``), tables and JSON (``report``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

from plait.sim.outcome import JobOutcome, Outcome

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A job by itself."""

    tpts_s: float
    jct_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One job."""

    name: str
    steps: int
    jct_s: float | None
    """Arrival to the end of its last step; ``None`` if it made none."""
    ttfs_s: float | None
    """Arrival to the end of its first step."""
    tpts_s: float | None
    """Median time between the ends of its steps; of a single step, from its first service."""
    queue_s: float
    """Arrival to its first service."""
    stretch: float | None
    waits_s: Mapping[str, float] = field(default_factory=dict)
    ended: str = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One scheme on one workload."""

    scheme: str
    jobs: tuple[JobSummary, ...]
    makespan_s: float
    n_devices: int
    speedup: float | None
    worst_stretch: float | None
    ttfs_mean_s: float | None
    ttfs_median_s: float | None
    tpts_s: float | None
    """Median over the jobs."""
    utilisation: float
    mfu: float
    device_hours_per_step: float | None
    """Device time of the whole makespan, idle time too, over all steps made: what is paid for."""
    switch_share: float
    """Of that device time, what went into moving state."""
    cost: float | None
    """Of that device time, in the currency of the price."""
    n_events: int
    n_decisions: int


def summarise(
    outcome: Outcome,
    *,
    alone: Mapping[str, Alone] | None = None,
    price: float | None = None,
) -> Summary:
    """Figures of ``outcome``. ``alone``: by job name; ``price``: of a device-hour."""
    by_name = alone or {}
    jobs = tuple(_job(job, by_name.get(job.name)) for job in outcome.jobs)
    stretches = [job.stretch for job in jobs if job.stretch is not None]
    known = bool(stretches) and len(stretches) == len(jobs) and outcome.makespan_s > 0
    alone_s = sum(by_name[job.name].jct_s for job in jobs) if known else 0.0
    ttfs = [job.ttfs_s for job in jobs if job.ttfs_s is not None]
    steps = sum(job.steps for job in jobs)
    device_s = outcome.n_devices * outcome.makespan_s + outcome.brought_device_s
    return Summary(
        scheme=outcome.scheme,
        jobs=jobs,
        makespan_s=outcome.makespan_s,
        n_devices=outcome.n_devices,
        speedup=alone_s / outcome.makespan_s if known else None,
        worst_stretch=max(stretches) if known else None,
        ttfs_mean_s=fmean(ttfs) if ttfs else None,
        ttfs_median_s=median(ttfs) if ttfs else None,
        tpts_s=_median([job.tpts_s for job in jobs]),
        utilisation=outcome.utilisation,
        mfu=outcome.mfu,
        device_hours_per_step=device_s / HOUR_S / steps if steps else None,
        switch_share=outcome.switch_s / device_s if device_s > 0 else 0.0,
        cost=None if price is None else price * device_s / HOUR_S,
        n_events=outcome.n_events,
        n_decisions=outcome.n_decisions,
    )


def alone_of(outcome: Outcome) -> Alone | None:
    """What a job by itself shows; ``None`` if it made no step."""
    (job,) = outcome.jobs
    tpts_s = _tpts_s(job)
    return Alone(tpts_s=tpts_s, jct_s=outcome.makespan_s) if tpts_s else None


def queueing_s(outcomes: Sequence[JobOutcome]) -> list[float]:
    """Delays before first service, sorted; the i-th of n is exceeded by n - i - 1 jobs."""
    return sorted(job.began_s - job.arrival_s for job in outcomes)


def _job(job: JobOutcome, alone: Alone | None) -> JobSummary:
    ends, tpts_s = job.step_ends_s, _tpts_s(job)
    return JobSummary(
        name=job.name,
        steps=len(ends),
        jct_s=ends[-1] - job.arrival_s if ends else None,
        ttfs_s=ends[0] - job.arrival_s if ends else None,
        tpts_s=tpts_s,
        queue_s=job.began_s - job.arrival_s,
        stretch=tpts_s / alone.tpts_s if tpts_s and alone is not None else None,
        waits_s=dict(job.waits_s),
        ended=job.ended,
    )


def _tpts_s(job: JobOutcome) -> float | None:
    """Waiting between steps is part of a step; waiting before the first is not."""
    ends = job.step_ends_s
    if not ends:
        return None
    if len(ends) == 1:
        return ends[0] - job.began_s
    return median(b - a for a, b in pairwise(ends))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
