"""Premises: what the launches of jobs run alone say of inter-step consistency and of idle gaps.

The measures are those of ``profiles.premises``; here the curves are read off the recorded spans. A
launch with several jobs is refused: neighbours change both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from plait.core.errors import ConfigError
from plait.obs.launch import Launch, read_launch, shares
from plait.obs.stages import stages
from plait.profiles.demand import Busy, trace
from plait.profiles.premises import Consistency, Curve, Opposition, consistency, opposition

WARM_UP = 1
"""First steps that are left out: caches are empty, the threads are started."""
BINS = 512
"""Of the time that two jobs are compared over; at a launch of minutes, below a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPremises:
    """One job alone."""

    name: str
    n_steps: int
    busy: float
    """Share of its time in which any worker did something for it."""
    consistency: Consistency | None
    """``None`` with fewer than two steps after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """All jobs, and each pair of them."""

    jobs: tuple[JobPremises, ...]
    pairs: tuple[tuple[str, str, Opposition], ...]


def premises(launch_dirs: Sequence[str | Path]) -> Premises:
    """Of launches with one job each; ConfigError for any other."""
    launches = [alone(directory) for directory in launch_dirs]
    jobs = []
    for launch in launches:
        (job,) = launch.jobs
        curves = decode_curves(launch)
        (first, last), busy = _busy(launch)
        share = sum(trace(busy, first, last, BINS)) / BINS if last > first else 0.0
        jobs.append(
            JobPremises(
                name=job.name,
                n_steps=len(curves),
                busy=share,
                consistency=consistency(curves[WARM_UP:]),
            )
        )
    pairs = tuple(
        (a.jobs[0].name, b.jobs[0].name, gaps(a, b)) for a, b in combinations(launches, 2)
    )
    return Premises(jobs=tuple(jobs), pairs=pairs)


def alone(launch_dir: str | Path) -> Launch:
    """A launch of one job; ConfigError if it has another number of them."""
    launch = read_launch(launch_dir)
    if len(launch.jobs) != 1:
        names = ", ".join(job.name for job in launch.jobs) or "none"
        raise ConfigError(
            f"{launch_dir} has the jobs {names}: give launches of one job each, run alone"
        )
    return launch


def decode_curves(launch: Launch) -> list[Curve]:
    """Tokens per forward step (rows, and prompts where they are computed) over the forward steps of
    each rollout, in order; each piece is a recorded span, a quarter of a second at most. One that a
    resume cut off is included; those of evaluations are told apart by no event and count."""
    (job,) = launch.jobs
    rollouts = [s for s in launch.spans if s["kind"] == "rollout" and s.get("steps")]
    held = stages(launch.job_events(job.name), launch.wall_s)
    curves: list[Curve] = []
    for stage in held:
        if stage.what == "rollout":
            inside = [s for s in rollouts if stage.t0 <= (s["t0"] + s["t1"]) / 2 < stage.t1]
            if inside:
                curves.append([(float(s["steps"]), s["tokens"] / s["steps"]) for s in inside])
    return curves


def gaps(a: Launch, b: Launch) -> Opposition:
    """Of two jobs over the shorter one's time, cut to it from their first work on."""
    (a0, a1), busy_a = _busy(a)
    (b0, b1), busy_b = _busy(b)
    length_s = min(a1 - a0, b1 - b0)
    if not length_s > 0:
        raise ConfigError(f"{a.root} or {b.root} has no recorded work: let the jobs make a step")
    return opposition(
        trace(busy_a, a0, a0 + length_s, BINS), trace(busy_b, b0, b0 + length_s, BINS)
    )


def _busy(launch: Launch) -> tuple[tuple[float, float], list[Busy]]:
    """When work began and ended, and the stretches in which any worker did some."""
    spans = sorted((s["t0"], s["t1"]) for s in launch.spans if shares(s))
    merged: list[list[float]] = []
    for t0, t1 in spans:
        if merged and t0 <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], t1)
        else:
            merged.append([t0, t1])
    if not merged:
        return (0.0, 0.0), []
    return (merged[0][0], merged[-1][1]), [Busy(t0_s=t0, t1_s=t1) for t0, t1 in merged]
