"""Report: what ``plait report DIR`` prints and draws.

The figures are ``stats``', the picture is ``figures``'; here they become a table or JSON. A report
of a launch that is still running, or was killed, covers what there is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from plait.core.errors import ConfigError
from plait.obs.figures import draw_report
from plait.obs.intervals import Interval, difference_ci95
from plait.obs.launch import Launch, read_launch
from plait.obs.records import plain
from plait.obs.stats import JobStats, LaunchStats, launch_stats, tpts_by_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A launch, its figures, and its picture if one was drawn."""

    launch: Launch
    stats: LaunchStats
    picture: Path | None = None


def make_report(
    launch_dir: str | Path,
    *,
    alone: str | Path | Mapping[str, float] | None = None,
    picture: str | Path | None = None,
) -> Report:
    """Read a launch and compute its figures.

    ``alone``: what stretch is measured against, a launch directory in which the same jobs ran one
    at a time or TPTS by job name. ``picture``: where the PNG goes; none without. ConfigError if a
    directory is no launch, or shares no job with the other.
    """
    launch = read_launch(launch_dir)
    if alone is None or isinstance(alone, Mapping):
        tpts_s = alone or {}
    else:
        tpts_s = tpts_by_job(read_launch(alone))
        if not set(tpts_s) & {job.name for job in launch.jobs}:
            raise ConfigError(
                f"{alone} has no finished step of a job of {launch_dir}: give another"
            )
    stats = launch_stats(launch, alone_tpts_s=tpts_s)
    drawn = None if picture is None else draw_report(launch, stats, picture)
    return Report(launch=launch, stats=stats, picture=drawn)


def to_json(report: Report) -> dict[str, Any]:
    """The figures as JSON values."""
    return {
        **plain(report.stats),
        "picture": None if report.picture is None else str(report.picture),
    }


def to_text(report: Report) -> Group:
    """The figures as tables."""
    stats = report.stats
    parts: list[Any] = [_headline(stats), _jobs(stats), _workers(stats)]
    ended = [j for j in stats.jobs if j.reason]
    parts += [Text(f"{job.name} {job.status}: {job.reason}", style="red") for job in ended]
    parts += [Text(f"{job.name}: {lost}") for job in stats.jobs if (lost := _lost(job))]
    if report.picture is not None:
        parts.append(Text(f"picture: {report.picture}", style="dim"))
    return Group(*parts)


def _headline(stats: LaunchStats) -> Text:
    text = f"{stats.policy} on {stats.model}: {_seconds(stats.wall_s)}, {stats.tokens:,} tokens"
    if stats.mfu is not None:
        text += f", MFU {stats.mfu:.1%}"
    if stats.aggregate_speedup is not None and stats.worst_stretch is not None:
        text += (
            f", {stats.aggregate_speedup:.2f}× the steps per hour (medians) of one job after "
            f"another (worst stretch {stats.worst_stretch:.2f})"
        )
    return Text(text, style="bold")


def _jobs(stats: LaunchStats) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("job", style="bold", no_wrap=True)
    table.add_column("status")
    stretch = any(job.stretch is not None for job in stats.jobs)
    names = ["steps", "TTFS", "TPTS", *(["stretch"] if stretch else []), "steps/h", "device-s/step"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reward first → last (95 %)", no_wrap=True)
    table.add_column("most of its waiting")
    for job in stats.jobs:
        cells = [job.name, job.status, str(job.steps), _seconds(job.ttfs_s), _seconds(job.tpts_s)]
        if stretch:
            cells.append(_number(job.stretch, 2))
        cells += [_number(job.steps_per_hour, 0), _number(job.device_s_per_step, 2)]
        cells += [_reward(job), _wait(job)]
        table.add_row(*cells)
    return table


def _workers(stats: LaunchStats) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("worker", style="bold", no_wrap=True)
    for name in ("busy", "MFU", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("busy with")
    for worker in stats.workers:
        total = sum(worker.busy_s.values()) or 1.0
        kinds = sorted(worker.busy_s.items(), key=lambda item: -item[1])
        table.add_row(
            worker.name,
            f"{worker.busy_share:.0%}",
            "–" if worker.mfu is None else f"{worker.mfu:.1%}",
            f"{worker.tokens:,}",
            ", ".join(f"{kind} {seconds / total:.0%}" for kind, seconds in kinds),
        )
    return table


def _reward(job: JobStats) -> str:
    if job.reward_last is None:
        return "–"
    kind = "held-out" if job.reward_is_held_out else "training"
    if job.reward_first is None:  # not evaluated at the start
        return f"{job.reward_last.mean:.3f} ({kind})"
    gain = difference_ci95(job.reward_first, job.reward_last)
    return f"{job.reward_first.mean:.3f} → {job.reward_last.mean:.3f} ({_signed(gain)}, {kind})"


def _signed(gain: Interval) -> str:
    if not math.isfinite(gain.low + gain.high):
        return f"{gain.mean:+.3f}"
    return f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"


def _lost(job: JobStats) -> str:
    """What was sampled and not learned from; empty if all was."""
    if not (job.reward_errors or job.groups_skipped):
        return ""
    errors = [_count(job.reward_errors, "reward error")] if job.reward_errors else []
    skipped = f"{job.groups_skipped} of {_count(job.groups, 'group')} skipped"
    updates = f"{_count(job.updates, 'update')} in {_count(job.steps, 'step')}"
    return ", ".join([*errors, skipped, updates])


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _wait(job: JobStats) -> str:
    top = list(job.wait_s.items())[:2]
    return ", ".join(f"{reason} {_seconds(seconds)}" for reason, seconds in top)


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 120:
        minutes, seconds = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
    return f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
