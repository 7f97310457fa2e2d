"""Figures: the picture of a simulation, drawn with matplotlib, which is imported only then.

Four parts: what each device did and for whom, utilisation over time, how long jobs queued (as a
distribution), and their steps over time. A colour is a job in all of them, as in ``plait report``.
"""

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plait.core.substages import Kind
from plait.obs.palette import GREY, GRID, NO_JOB, job_colours, tone
from plait.obs.timeline import spread
from plait.sim.outcome import Outcome
from plait.sim.summary import queueing_s

if TYPE_CHECKING:
    from plait.sim.report import Case

N_BINS = 600
"""Time bins: about one for each two pixels of the picture's width."""
MOST_LANES = 32
"""Devices that get a lane of their own; of more, the first of them are drawn."""
MOST_NAMED = 12
"""Jobs that the legend names; with more, colours repeat anyway."""
TONES = {
    Kind.DECODE: 1.0,
    Kind.BATCH: 1.0,
    Kind.PREFILL: 1.0,
    Kind.TRAIN: 0.0,
    Kind.REFERENCE: 0.45,
    Kind.MOVE: 0.25,
}
"""Of the job's colour: rollout as it is, training dark, the rest pale (``obs.palette``)."""

Floats = NDArray[np.float64]

_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "grid.color": GRID,
}


def draw(one: "Case", out: Path) -> Path:
    """Write a case's picture into the directory ``out`` as PNG; its path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    outcome = one.outcome
    devices = sorted({span.device for span in outcome.spans}, key=_natural)[:MOST_LANES]
    colours = job_colours([job.name for job in outcome.jobs])
    end_s = max((span.t1 for span in outcome.spans), default=0.0) or outcome.makespan_s or 1.0
    unit, unit_s = time_unit(end_s)
    with mpl.rc_context(_STYLE):
        heights = [1.2 + 0.3 * max(1, len(devices)), 3.0]
        figure: Any = Figure(figsize=(13, sum(heights) + 0.6), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=heights)
        figure.suptitle(_title(one), fontsize=12, fontweight="bold", x=0.012, ha="left")
        _gantt(top.subplots(), outcome, devices, colours, end_s=end_s, unit=unit, unit_s=unit_s)
        left, middle, right = bottom.subplots(1, 3)
        _utilisation(left, outcome, end_s=end_s, unit=unit, unit_s=unit_s)
        _queueing(middle, outcome)
        _steps(right, outcome, colours, unit=unit, unit_s=unit_s)
        path = out / f"{re.sub(r'[^A-Za-z0-9.=_-]+', '_', one.name)}.png"
        figure.savefig(path, dpi=110)
    return path


def busy(outcome: Outcome, edges_s: Floats) -> Floats:
    """Share of the devices on which something ran, for each time bin. On a device that several
    share their parts add up, to the whole at most."""
    by_device: dict[str, Floats] = {}
    count: dict[str, int] = {}
    for span in outcome.spans:
        bins = by_device.setdefault(span.device, np.zeros(len(edges_s) - 1))
        count[span.device] = span.n_devices
        spread(bins, span.t0, span.t1, span.share, edges_s)
    total = np.zeros(len(edges_s) - 1)
    for device, bins in by_device.items():
        total += count[device] * np.minimum(bins, 1.0)
    return total / max(1, outcome.n_devices)


def time_unit(end_s: float) -> tuple[str, float]:
    """A unit in which ``end_s`` is a number that is read easily, and its seconds."""
    for unit, unit_s in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if end_s >= 3 * unit_s:
            return unit, unit_s
    return "seconds", 1.0


def _natural(name: str) -> list[tuple[int, str]]:
    """``node/2`` before ``node/10``."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _gantt(
    axes: Any,
    outcome: Outcome,
    devices: list[str],
    colours: dict[str, str],
    *,
    end_s: float,
    unit: str,
    unit_s: float,
) -> None:
    from matplotlib.patches import Patch

    edges_s = np.linspace(0.0, end_s, N_BINS + 1)
    for lane, device in enumerate(devices):
        parts: defaultdict[Any, Floats] = defaultdict(lambda: np.zeros(N_BINS))
        for span in outcome.spans:
            if span.device == device:
                colour = tone(colours.get(span.job, NO_JOB), TONES.get(span.kind, 0.45))
                spread(parts[colour], span.t0, span.t1, span.share, edges_s)
        low = np.zeros(N_BINS)
        for colour, part in parts.items():
            high = np.minimum(low + part, 1.0)
            axes.fill_between(
                edges_s / unit_s,
                lane + 0.92 - 0.84 * np.append(low, low[-1]),
                lane + 0.92 - 0.84 * np.append(high, high[-1]),
                step="post",
                color=colour,
                linewidth=0,
            )
            low = high
    what = "What each device computed and for whom (white: idle; dark: training; grey: several)"
    axes.set(xlim=(0, end_s / unit_s), ylim=(max(1, len(devices)), 0), xlabel=f"time ({unit})")
    axes.set_title(what)
    axes.set_yticks([n + 0.5 for n in range(len(devices))], devices)
    axes.tick_params(axis="y", length=0)
    named = list(colours.items())[:MOST_NAMED]
    handles = [Patch(color=colour, label=name) for name, colour in named]
    more = len(colours) - len(named)
    axes.legend(
        handles=[*handles, *([Patch(color="white", label=f"and {more} more")] if more else [])],
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0,
    )


def _utilisation(axes: Any, outcome: Outcome, *, end_s: float, unit: str, unit_s: float) -> None:
    edges_s = np.linspace(0.0, end_s, N_BINS // 10 + 1)
    shares = busy(outcome, edges_s)
    axes.stairs(100 * shares, edges_s / unit_s, fill=True, color=GREY, alpha=0.35)
    mean = f"Devices in use (mean {outcome.utilisation:.0%})"
    axes.set(xlabel=f"time ({unit})", ylabel="%", ylim=(0, 105), title=mean)


def _queueing(axes: Any, outcome: Outcome) -> None:
    delays_s = queueing_s(outcome.jobs)
    unit, unit_s = time_unit(delays_s[-1] if delays_s else 0.0)
    shares = [100 * (i + 1) / len(delays_s) for i in range(len(delays_s))]
    axes.step([0.0, *(d / unit_s for d in delays_s)], [0.0, *shares], where="post", color=GREY)
    axes.set(xlabel=f"delay before first service ({unit})", ylabel="% of jobs", ylim=(0, 105))
    axes.set_title("Queueing")


def _steps(
    axes: Any, outcome: Outcome, colours: dict[str, str], *, unit: str, unit_s: float
) -> None:
    for job in outcome.jobs[:MOST_NAMED]:
        times = [job.began_s / unit_s, *(end_s / unit_s for end_s in job.step_ends_s)]
        axes.step(times, range(len(times)), where="post", color=colours[job.name], linewidth=1.2)
    axes.set(xlabel=f"time ({unit})", ylabel="steps", title="Steps done")


def _title(one: "Case") -> str:
    s = one.summary
    text = f"{one.name}: {len(s.jobs)} jobs on {s.n_devices} devices, busy {s.utilisation:.0%}"
    if s.speedup is not None and s.worst_stretch is not None:
        text += f", {s.speedup:.2f}× of one after another, worst stretch {s.worst_stretch:.2f}"
    return text
