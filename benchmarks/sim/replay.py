"""C8: recorded launches replayed: every plan made again, and the makespan predicted.

The demo's three jobs (tiny) and the four SmolLM2 jobs of example 202, shortened to a few steps.
Each set of jobs runs one at a time, on all cores and with one core for each worker, and shared, in
turn, ``REPEATS`` times. What the shared ones take is predicted from those alone: work, rates
and overheads come from them, nothing from the shared ones. The error has to be within 10 %, or
within the spread of the shared launches over their median where that is more.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figure import Measured
from benchmarks.live.launches import spread
from plait.cli.run import drive
from plait.core.errors import EngineError
from plait.core.runs import Stage
from plait.jobs.load import load_jobs
from plait.jobs.spec import JobSpec
from plait.models.registry import resolve
from plait.obs.launch import Launch, read_launch
from plait.policies.registry import make
from plait.runtime.settings import Settings
from plait.sim.decisions import check_launch
from plait.sim.replay import Prediction, predict

EXAMPLE = Path(__file__).parents[2] / "examples" / "202_smollm2_four_jobs.yaml"
DEMO = Path(str(files("plait.jobs") / "demo.yaml"))
REPEATS = 2
"""Of each kind of launch: two tell the spread of this machine."""
WITHIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Jobs that are replayed."""

    name: str
    file: Path
    steps: int
    """Of each job, so that it is the number of steps and not luck that ends it."""
    model: str
    """As the cost model calls it."""


def sets() -> tuple[Jobs, ...]:
    """The demo and the example."""
    tiny = str(resolve("tiny") / "config.json")
    return (
        Jobs(name="demo", file=DEMO, steps=10, model=tiny),
        Jobs(name="smollm2", file=EXAMPLE, steps=4, model="smollm2-135m"),
    )


def measure() -> Measured:
    """The worst error over what it may be."""
    rows: dict[str, Any] = {}
    for jobs in sets():
        specs = _shortened(jobs)
        alone: list[Launch] = []
        shared: list[Launch] = []
        for _ in range(REPEATS):
            alone.append(_run(specs, "sequential", elastic=True))
            alone.append(_run(specs, "sequential", elastic=False))
            shared.append(_run(specs, "plait", elastic=True))
        rows[jobs.name] = judge(jobs, alone, shared)
    worst = max(abs(row["error"]) / row["allowed"] for row in rows.values())
    same = all(row["same_decisions"] for row in rows.values())
    return Measured(
        value=1.0 / worst if worst > 0 else float("inf"),
        ok=same and worst <= 1.0,
        spread=max(spread(row["live_s"]) for row in rows.values()),
        detail=rows,
    )


def judge(jobs: Jobs, alone: Sequence[Launch], shared: Sequence[Launch]) -> dict[str, Any]:
    """What one set's launches show."""
    found = [predict(launch, alone, model=jobs.model) for launch in shared]
    one_by_one = [launch for launch in alone if launch.info["settings"]["elastic"]]
    itself = [predict(launch, alone, model=jobs.model) for launch in one_by_one]
    lives = [one.live_s for one in found]
    checked = [check_launch(launch.root) for launch in (*alone, *shared)]
    return {
        "error": median(one.predicted_s for one in found) / median(lives) - 1.0,
        "allowed": max(WITHIN, 2 * spread(lives)),
        "live_s": lives,
        "predicted_s": [one.predicted_s for one in found],
        "sequential_s": [one.live_s for one in itself],
        "sequential_predicted_s": [one.predicted_s for one in itself],
        "sequential_spread": spread(one.live_s for one in itself),
        "jobs": _by_job(found),
        "decisions": sum(sum(one.n_decisions.values()) for one in checked),
        "same_decisions": all(one.same for one in checked),
        "train_slowdown": found[0].rates.train_slowdown,
        "overheads_s": dict(found[0].overheads_s),
    }


def _shortened(jobs: Jobs) -> list[JobSpec]:
    return [
        spec.model_copy(update={"steps": jobs.steps, "target_reward": None})
        for spec in load_jobs([jobs.file])
    ]


def _run(specs: Sequence[JobSpec], policy: str, *, elastic: bool) -> Launch:
    directory = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    settings = Settings(elastic=elastic)
    outcomes = asyncio.run(
        drive(specs, directory, policy=make(policy), settings=settings, quiet=True)
    )
    bad = {name: one.reason for name, one in outcomes.items() if one.stage is not Stage.DONE}
    if bad or len(outcomes) < len(specs):
        raise EngineError(f"{policy}: {bad or 'interrupted'} (see {directory})")
    return read_launch(directory)


def _by_job(found: Sequence[Prediction]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "live_s": median(one.live_jobs_s[name] for one in found),
            "predicted_s": median(one.predicted_jobs_s[name] for one in found),
        }
        for name in found[0].live_jobs_s
    }
