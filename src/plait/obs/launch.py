"""Launch: a launch directory read back, as far as it got.

Reads what ``recorder`` wrote; tolerant of a launch that was killed or is still running. Runs are
called by their job's name from here on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError
from plait.obs import shapes
from plait.obs.info import read_info
from plait.obs.jsonl import read_jsonl
from plait.obs.layout import LaunchLayout

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    """One job's rows, in order of time; of a step recorded twice the last counts."""

    name: str
    steps: tuple[Row, ...]
    evaluations: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything of a launch that figures are computed from."""

    root: Path
    info: Mapping[str, Any]
    spans: tuple[Row, ...]
    events: tuple[Row, ...]
    jobs: tuple[JobLog, ...]
    """In order of joining."""
    names: Mapping[str, str]
    """Run id → job name."""

    @property
    def wall_s(self) -> float:
        """Running time of the launch."""
        times = [e["t"] for e in self.events] + [s["t1"] for s in self.spans]
        times += [row["t"] for job in self.jobs for row in (*job.steps, *job.evaluations)]
        return float(max(times, default=0.0))

    @property
    def workers(self) -> list[str]:
        """Workers, in order of first appearance."""
        return list(dict.fromkeys(s["worker"] for s in self.spans))

    def name(self, run: str) -> str:
        """The job's name of a run."""
        return self.names.get(run, run)

    def job_events(self, job: str) -> list[Row]:
        """Events of one job, in order of time."""
        return [e for e in self.events if e.get("run") and self.name(e["run"]) == job]


def read_launch(launch_dir: str | Path) -> Launch:
    """Read a launch directory; ConfigError if it is none."""
    layout = LaunchLayout(Path(launch_dir))
    if not layout.info.is_file():
        raise ConfigError(
            f"{launch_dir} is no launch directory (it has no launch.json): "
            "give the directory that plait run printed"
        )
    events = tuple(sorted(read_jsonl(layout.events, shapes.event), key=lambda e: float(e["t"])))
    names = {e["run"]: e["job"] for e in events if e["kind"] == "added"}
    order = list(dict.fromkeys([*names.values(), *layout.job_names()]))
    return Launch(
        root=layout.root,
        info=read_info(layout),
        spans=tuple(sorted(read_jsonl(layout.workers, shapes.span), key=lambda s: float(s["t0"]))),
        events=events,
        jobs=tuple(_job(layout, name) for name in order),
        names=names,
    )


def shares(span: Row) -> dict[str, float]:
    """Which runs a span served, and in what parts (they sum to 1; empty if it served none)."""
    by_run = span.get("tokens_by_run") or {}
    total = sum(by_run.values())
    if total > 0:
        return {run: n / total for run, n in by_run.items() if n > 0}
    if by_run:
        return {run: 1 / len(by_run) for run in by_run}
    return {span["run"]: 1.0} if span.get("run") else {}


def _job(layout: LaunchLayout, name: str) -> JobLog:
    steps: dict[int, Row] = {}
    evaluations: dict[int, Row] = {}
    for row in read_jsonl(layout.job(name).metrics, shapes.metrics):
        (evaluations if "eval_n" in row else steps)[row["step"]] = row
    return JobLog(
        name=name,
        steps=tuple(steps[n] for n in sorted(steps)),
        evaluations=tuple(evaluations[n] for n in sorted(evaluations)),
    )
