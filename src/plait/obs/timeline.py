"""Timeline: the lanes of a launch's picture.

A worker's lane is a stack: its height is the share of that moment spent on each job, white is idle
time. So a lane stays true however many thousand spans it holds. A job's lane shows its stages: the
tone of its colour says which, a thin line says that it waited.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.obs.launch import Launch, shares
from plait.obs.palette import GREY, NO_JOB, STAGE_TONES, pale, tone
from plait.obs.stages import Held, stages

N_BINS = 900
"""Time bins of the worker lanes: about one per two pixels of the picture's width."""
LANE_HEIGHT = 0.84
STAGE_HEIGHT = 0.6
WAIT_HEIGHT = 0.1

Floats = NDArray[np.float64]


def occupancy(launch: Launch, worker: str, edges_s: Floats) -> dict[str, Floats]:
    """Per job (``""``: work for none), the part of each time bin that a worker spent on it."""
    found: dict[str, Floats] = {}
    for span in launch.spans:
        if span["worker"] != worker:
            continue
        for run, part in (shares(span) or {"": 1.0}).items():
            bins = found.setdefault(launch.name(run), np.zeros(len(edges_s) - 1))
            spread(bins, span["t0"], span["t1"], part, edges_s)
    return found


def spread(bins: Floats, t0: float, t1: float, weight: float, edges_s: Floats) -> None:
    """Add to each time bin ``weight`` × the part of it that lies within ``[t0, t1]``."""
    first = max(int(np.searchsorted(edges_s, t0, side="right")) - 1, 0)
    last = min(int(np.searchsorted(edges_s, t1, side="left")), len(bins))
    edges = edges_s[first : last + 1]
    inside = np.minimum(edges[1:], t1) - np.maximum(edges[:-1], t0)
    bins[first:last] += weight * np.maximum(inside, 0.0) / np.diff(edges)


def draw_timeline(
    axes: Any, launch: Launch, colours: dict[str, str], *, unit: str, unit_s: float
) -> None:
    """Draw all lanes, workers above jobs, with two legends to the right."""
    end_s = launch.wall_s or 1.0
    edges_s = np.linspace(0.0, end_s, N_BINS + 1)
    labels = []
    some_for_nobody = False
    for lane, worker in enumerate(launch.workers):
        labels.append(f"worker {worker}")
        parts = occupancy(launch, worker, edges_s)
        some_for_nobody |= "" in parts
        low = np.zeros(N_BINS)
        for job in [*colours, ""]:
            if job in parts:
                high = np.minimum(low + LANE_HEIGHT * parts[job], LANE_HEIGHT)
                _stack(axes, edges_s / unit_s, lane, low, high, colours.get(job, NO_JOB))
                low = high
    for log in launch.jobs:
        lane = len(labels)
        labels.append(log.name)
        for held in stages(launch.job_events(log.name), launch.wall_s):
            _stage(axes, held, lane, unit_s, colours[log.name])
    axes.set(
        xlim=(0, end_s / unit_s),
        ylim=(len(labels), 0),
        xlabel=f"time ({unit})",
        title="What each worker computed and for whom (white: idle); what each job was doing",
    )
    axes.set_yticks([n + 0.5 for n in range(len(labels))], labels)
    axes.axhline(len(launch.workers), color=GREY, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _legends(axes, colours | ({"no job": NO_JOB} if some_for_nobody else {}))


def _stack(axes: Any, x: Floats, lane: int, low: Floats, high: Floats, colour: str) -> None:
    floor = lane + 0.5 + LANE_HEIGHT / 2  # lanes are counted downwards, a stack grows upwards
    axes.fill_between(
        x,
        floor - np.append(low, low[-1]),
        floor - np.append(high, high[-1]),
        step="post",
        color=colour,
        linewidth=0,
    )


def _stage(axes: Any, held: Held, lane: int, unit_s: float, colour: str) -> None:
    amount = STAGE_TONES.get(held.what)
    height = WAIT_HEIGHT if amount is None else STAGE_HEIGHT
    axes.broken_barh(
        [(held.t0 / unit_s, (held.t1 - held.t0) / unit_s)],
        (lane + 0.5 - height / 2, height),
        facecolors=pale(colour, 0.35) if amount is None else tone(colour, amount),
        linewidth=0,
    )


def _legends(axes: Any, colours: dict[str, str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    place = {"alignment": "left", "borderaxespad": 0.0}
    jobs = axes.legend(
        handles=[Patch(color=colour, label=job) for job, colour in colours.items()],
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        title="job",
        **place,
    )
    axes.add_artist(jobs)
    axes.legend(
        handles=[
            Patch(color=tone(GREY, 1.0), label="rollout"),
            Patch(color=tone(GREY, 0.45), label="tool, reward"),
            Patch(color=tone(GREY, 0.0), label="training"),
            Line2D([], [], color=pale(GREY, 0.6), linewidth=2.5, label="waiting"),
        ],
        loc="lower left",
        bbox_to_anchor=(1.01, 0.0),
        title="stage (lanes of jobs)",
        **place,
    )
