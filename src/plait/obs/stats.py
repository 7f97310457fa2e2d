"""Stats: the figures of a launch, from its directory alone.

Vocabulary: TTFS, joining → end of the first training step. TPTS, median time between the ends of
successive training steps. Stretch, a job's TPTS here ÷ alone; Σ 1/stretch is the aggregate speed-up
over running the jobs one after another, and means little without the worst stretch beside it. Busy
share counts a worker as busy at batch 1, so MFU stands beside it: FLOPs done ÷ what the machine's
measured peak would have done in the same time. A device-second is one second of the whole machine
(cores held ÷ cores) or, where no cores are counted, of one device.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from plait.obs.intervals import Interval, mean_ci95
from plait.obs.launch import JobLog, Launch, Row, shares
from plait.obs.stages import ENDS, wait_seconds

STAGE_COLUMNS = ("rollout_s", "reward_s", "reference_s", "train_s", "publish_s", "wait_s")
"""Columns of a metrics row that make up its step."""

REWARD_WINDOW = 0.2
"""Where nothing was evaluated, first and last reward are means over this part of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStats:
    """Figures of one job; ``None`` where the launch does not tell."""

    name: str
    status: str
    reason: str
    steps: int
    ttfs_s: float | None
    tpts_s: float | None
    steps_per_hour: float | None
    tokens: int
    stage_shares: Mapping[str, float]
    wait_s: Mapping[str, float]
    device_s_per_step: float | None
    reward_first: Interval | None
    reward_last: Interval | None
    reward_is_held_out: bool
    reward_errors: int
    groups: int
    groups_skipped: int
    updates: int
    """Steps that made a version; the others had nothing to learn from."""
    stretch: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """Figures of one worker over the launch's running time."""

    name: str
    busy_share: float
    busy_s: Mapping[str, float]
    tokens: int
    mfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStats:
    """Figures of a launch."""

    policy: str
    model: str
    wall_s: float
    tokens: int
    mfu: float | None
    jobs: tuple[JobStats, ...]
    workers: tuple[WorkerStats, ...]
    aggregate_speedup: float | None = None
    """Σ 1/stretch, if every job's is known."""
    worst_stretch: float | None = None
    alone: Mapping[str, float] = field(default_factory=dict)
    """TPTS of each job alone, as given."""


def launch_stats(launch: Launch, *, alone_tpts_s: Mapping[str, float] | None = None) -> LaunchStats:
    """All figures. ``alone_tpts_s``: TPTS of jobs when they ran alone, by name."""
    alone = dict(alone_tpts_s or {})
    jobs = tuple(_job(launch, job, alone.get(job.name)) for job in launch.jobs)
    stretches = [job.stretch for job in jobs if job.stretch is not None]
    known = bool(jobs) and len(stretches) == len(jobs)
    return LaunchStats(
        policy=str(launch.info.get("policy", "")),
        model=str(launch.info.get("model", "")),
        wall_s=launch.wall_s,
        tokens=sum(job.tokens for job in jobs),
        mfu=_mfu(launch, launch.spans),
        jobs=jobs,
        workers=tuple(_worker(launch, name) for name in launch.workers),
        aggregate_speedup=sum(1 / s for s in stretches) if known else None,
        worst_stretch=max(stretches, default=None),
        alone=alone,
    )


def tpts_by_job(launch: Launch) -> dict[str, float]:
    """TPTS of each job: what another launch's stretch is measured against."""
    found = {job.name: _tpts(launch, job) for job in launch.jobs}
    return {name: value for name, value in found.items() if value is not None}


def covered_s(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals, seconds."""
    total, end = 0.0, float("-inf")
    for t0, t1 in sorted(spans):
        total += max(0.0, t1 - max(t0, end))
        end = max(end, t1)
    return total


def _job(launch: Launch, job: JobLog, alone_s: float | None) -> JobStats:
    events = launch.job_events(job.name)
    joined_s = _joined_s(events)
    tpts_s = _tpts(launch, job)
    n = len(job.steps)
    last_s = job.steps[-1]["t"] - joined_s if n else 0.0
    status, reason = _status(events)
    held_out, first, last = _rewards(job)
    device_s = _device_s(launch, job.name)
    return JobStats(
        name=job.name,
        status=status,
        reason=reason,
        steps=n,
        ttfs_s=job.steps[0]["t"] - joined_s if n else None,
        tpts_s=tpts_s,
        steps_per_hour=3600 * n / last_s if last_s > 0 else None,
        tokens=sum(row.get("tokens_sampled") or 0 for row in job.steps),
        stage_shares=_stage_shares(job),
        wait_s=wait_seconds(events, launch.wall_s),
        device_s_per_step=device_s / n if n else None,
        reward_first=first,
        reward_last=last,
        reward_is_held_out=held_out,
        reward_errors=sum(row.get("reward_errors") or 0 for row in job.steps),
        groups=sum(row.get("groups") or 0 for row in job.steps),
        groups_skipped=sum(row.get("groups_skipped") or 0 for row in job.steps),
        updates=len({row["version"] for row in job.steps if row.get("version")}),
        stretch=tpts_s / alone_s if tpts_s and alone_s else None,
    )


def _joined_s(events: list[Row]) -> float:
    return float(next((e["t"] for e in events if e["kind"] == "added"), 0.0))


def _tpts(launch: Launch, job: JobLog) -> float | None:
    ends = [float(row["t"]) for row in job.steps]
    if not ends:
        return None
    if len(ends) == 1:
        return ends[0] - _joined_s(launch.job_events(job.name))
    return median(b - a for a, b in pairwise(ends))


def _status(events: list[Row]) -> tuple[str, str]:
    for event in reversed(events):
        if event["kind"] == "added":  # new, or taken up again by a resume
            return "unfinished", ""
        if event["kind"] in ENDS:
            return event["kind"], str(event.get("reason") or "")
    return "unknown", ""


def _stage_shares(job: JobLog) -> dict[str, float]:
    sums = {c[:-2]: sum(row.get(c) or 0.0 for row in job.steps) for c in STAGE_COLUMNS}
    total = sum(sums.values())
    return {name: value / total for name, value in sums.items()} if total > 0 else {}


def _rewards(job: JobLog) -> tuple[bool, Interval | None, Interval | None]:
    """Held-out where the job was evaluated: at step 0 (if it was then), and last."""
    evaluated = [e for e in job.evaluations if e.get("eval_reward_mean") is not None]
    if evaluated and evaluated[-1]["step"] > 0:
        at_start = evaluated[0]["step"] == 0
        return True, _evaluated(evaluated[0]) if at_start else None, _evaluated(evaluated[-1])
    rewards = [row["reward_mean"] for row in job.steps if row.get("reward_mean") is not None]
    window = max(1, round(REWARD_WINDOW * len(rewards)))
    return False, mean_ci95(rewards[:window]), mean_ci95(rewards[-window:])


def _evaluated(row: Row) -> Interval:
    mean = float(row["eval_reward_mean"])
    low, high = row.get("eval_ci95_low"), row.get("eval_ci95_high")
    return Interval(
        mean=mean,
        low=float("-inf") if low is None else low,
        high=float("inf") if high is None else high,
        n=int(row["eval_n"]),
    )


def _device_s(launch: Launch, job: str) -> float:
    cores = (launch.info.get("machine") or {}).get("cores") or 0
    total = 0.0
    for span in launch.spans:
        part = sum(p for run, p in shares(span).items() if launch.name(run) == job)
        held = span["threads"] / cores if cores and span.get("threads") else 1.0
        total += part * held * (span["t1"] - span["t0"])
    return total


def _worker(launch: Launch, name: str) -> WorkerStats:
    spans = [s for s in launch.spans if s["worker"] == name]
    by_kind: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        by_kind[span["kind"]] += span["t1"] - span["t0"]
    busy_s = covered_s([(s["t0"], s["t1"]) for s in spans])
    return WorkerStats(
        name=name,
        busy_share=busy_s / launch.wall_s if launch.wall_s > 0 else 0.0,
        busy_s=dict(by_kind),
        tokens=sum(s.get("tokens") or 0 for s in spans),
        mfu=_mfu(launch, spans),
    )


def _mfu(launch: Launch, spans: list[Row] | tuple[Row, ...]) -> float | None:
    peak_flops = launch.info.get("peak_flops") or 0.0
    flops = sum(s.get("flops") or 0.0 for s in spans)
    if peak_flops <= 0 or launch.wall_s <= 0 or flops <= 0:
        return None
    return float(flops / (peak_flops * launch.wall_s))
