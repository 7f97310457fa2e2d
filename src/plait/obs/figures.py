"""Figures: the picture of a launch, drawn with matplotlib, which is imported only when a picture
is asked for.

Four parts: timeline, rewards with held-out evaluations, utilisation, reasons for waiting. A colour
is a job in all of them.
"""

from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import StoreError
from plait.obs.launch import Launch
from plait.obs.palette import GREY, GRID, PALETTE, job_colours, pale
from plait.obs.stats import LaunchStats
from plait.obs.timeline import Floats, draw_timeline, occupancy, spread

N_BINS = 60
"""Time bins of the utilisation curves: fine enough for a trend, coarse enough to be read."""
N_COLUMNS = 4
"""Reward panels side by side."""
SMOOTH_FROM = 10
"""Fewer steps than this are shown as they are."""


def draw_report(launch: Launch, stats: LaunchStats, path: str | Path) -> Path:
    """Write the picture of a launch as PNG; its path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        n_lanes = len(launch.workers) + len(launch.jobs)
        n_rows = -(-len(launch.jobs) // N_COLUMNS) or 1
        heights = [1.7 + 0.42 * n_lanes, 0.5 + 2.5 * n_rows, 3.2]
        figure: Any = Figure(figsize=(13, sum(heights)), layout="constrained")
        figure.get_layout_engine().set(h_pad=0.08, w_pad=0.08)
        top, middle, bottom = figure.subfigures(3, 1, height_ratios=heights)
        top.suptitle(_title(stats), fontsize=13, fontweight="bold", x=0.012, ha="left")
        colours = job_colours([job.name for job in launch.jobs])
        unit, unit_s = _time_unit(launch.wall_s)
        draw_timeline(top.subplots(), launch, colours, unit=unit, unit_s=unit_s)
        _rewards(middle, launch, colours, n_rows)
        left, right = bottom.subplots(1, 2, width_ratios=[1.25, 1])
        _utilisation(left, launch)
        _waits(right, stats, colours)
        try:
            figure.savefig(path, dpi=130)
        except OSError as error:
            raise StoreError(
                f"cannot write {path} ({error.strerror}): give another path"
            ) from error
    return Path(path)


def _rewards(figure: Any, launch: Launch, colours: dict[str, str], n_rows: int) -> None:
    n_columns = min(N_COLUMNS, max(1, len(launch.jobs)))
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    for axes in grid.flat[len(launch.jobs) :]:
        axes.axis("off")
    for axes, job in zip(grid.flat, launch.jobs, strict=False):
        colour = colours[job.name]
        rows = [r for r in job.steps if r.get("reward_mean") is not None]
        steps, rewards = [r["step"] for r in rows], np.array([r["reward_mean"] for r in rows])
        axes.plot(steps, rewards, color=pale(colour, 0.6), linewidth=0.9)
        if len(rewards) >= SMOOTH_FROM:
            smooth = _smooth(rewards)
            axes.plot(steps, smooth, color=colour, linewidth=1.9)
        seen = [r for r in job.evaluations if r.get("eval_reward_mean") is not None]
        if seen:
            mean = np.array([r["eval_reward_mean"] for r in seen])
            low = np.array([_or(r.get("eval_ci95_low"), r["eval_reward_mean"]) for r in seen])
            high = np.array([_or(r.get("eval_ci95_high"), r["eval_reward_mean"]) for r in seen])
            axes.errorbar(
                [r["step"] for r in seen],
                mean,
                yerr=[np.maximum(mean - low, 0), np.maximum(high - mean, 0)],
                fmt="o",
                markersize=4.5,
                color="black",
                capsize=3,
                elinewidth=1.1,
            )
        axes.set(title=job.name, xlabel="step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(y=0.12)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
    for row in grid:
        row[0].set_ylabel("reward")
    if launch.jobs:
        figure.legend(handles=_reward_handles(), loc="outside upper right", ncols=3)
    figure.suptitle("  Reward", x=0.0, ha="left", fontsize=11, fontweight="bold")


def _reward_handles() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=pale(GREY, 0.6), linewidth=0.9, label="training"),
        Line2D([], [], color=GREY, linewidth=1.9, label="training, smoothed"),
        Line2D([], [], color="black", marker="o", linewidth=1.1, label="held-out, 95 % interval"),
    ]


def _utilisation(axes: Any, launch: Launch) -> None:
    unit, scale = _time_unit(launch.wall_s)
    end_s = launch.wall_s or 1.0
    edges_s = np.linspace(0.0, end_s, N_BINS + 1)
    middle = (edges_s[1:] + edges_s[:-1]) / 2 / scale
    lines = ("-", "--", ":", "-.")
    for n, worker in enumerate(launch.workers):
        busy = np.minimum(sum(occupancy(launch, worker, edges_s).values(), np.zeros(N_BINS)), 1)
        axes.plot(
            middle,
            100 * busy,
            color=GREY,
            linestyle=lines[n % len(lines)],
            label=f"{worker}: busy, mean {100 * float(busy.mean()):.0f} %",
        )
    peak_flops = launch.info.get("peak_flops") or 0.0
    if peak_flops > 0 and any(s.get("flops") for s in launch.spans):
        done = np.zeros(N_BINS)
        for span in launch.spans:
            length_s = span["t1"] - span["t0"]
            if length_s > 0:
                flops_per_s = (span.get("flops") or 0.0) / length_s
                spread(done, span["t0"], span["t1"], flops_per_s, edges_s)
        mfu = 100 * done / peak_flops
        label = f"machine: MFU, mean {float(mfu.mean()):.0f} %"
        axes.plot(middle, mfu, color=PALETTE[5], linewidth=2, label=label)
    axes.set(
        xlim=(0, end_s / scale),
        ylim=(0, 105),
        xlabel=f"time ({unit})",
        ylabel="%",
        title="Workers' busy time, and FLOPs done ÷ measured peak (MFU)",
    )
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    if axes.lines:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=3)


def _waits(axes: Any, stats: LaunchStats, colours: dict[str, str]) -> None:
    unit, scale = _time_unit(max((sum(j.wait_s.values()) for j in stats.jobs), default=0.0))
    totals: dict[str, float] = {}
    for job in stats.jobs:
        for reason, seconds in job.wait_s.items():
            totals[reason] = totals.get(reason, 0.0) + seconds
    reasons = sorted(totals, key=lambda reason: totals[reason])
    left = np.zeros(len(reasons))
    for job in stats.jobs:
        seconds_R = np.array([job.wait_s.get(r, 0.0) for r in reasons]) / scale
        if reasons:
            axes.barh(reasons, seconds_R, left=left, color=colours[job.name], height=0.6)
            left += seconds_R
    axes.set(title="What jobs waited for, all jobs together", xlabel=f"waiting time ({unit})")
    if not reasons:
        axes.text(0.5, 0.5, "no job waited", transform=axes.transAxes, ha="center", color=GREY)
        axes.set_axis_off()
    for n, total in enumerate(left):
        axes.text(total, n, f" {total:,.1f}", va="center", color=GREY, fontsize=9)
    if reasons:
        axes.set_xlim(0, float(left.max()) * 1.15)
        axes.set_ylim(len(reasons) - 0.5 - max(len(reasons), 4), len(reasons) - 0.5)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.tick_params(axis="y", length=0)


def _title(stats: LaunchStats) -> str:
    unit, scale = _time_unit(stats.wall_s)
    jobs = "1 job" if len(stats.jobs) == 1 else f"{len(stats.jobs)} jobs"
    parts = [
        f"{jobs} on {stats.model}, policy {stats.policy}: "
        f"{stats.wall_s / scale:.1f} {unit}, {stats.tokens:,} tokens"
    ]
    if stats.aggregate_speedup is not None and stats.worst_stretch is not None:
        parts.append(
            f"{stats.aggregate_speedup:.2f}× aggregate, worst stretch {stats.worst_stretch:.2f}"
        )
    return "  ·  ".join(parts)


def _smooth(values: Floats) -> Floats:
    """Centred moving mean over about a tenth of the steps; shorter at the ends."""
    half = max(2, len(values) // 20)
    padded = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return np.asarray((padded[high] - padded[low]) / (high - low))


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds >= 2 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if seconds >= 180 else ("s", 1.0)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


_STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": "#20262b",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "white",
}
