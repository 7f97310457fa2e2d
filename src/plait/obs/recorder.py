"""Recorder: writes a launch's account of itself as it happens.

Every line is on its file when the call returns. The recorder keeps one clock: ``now`` on the
runtime's clock goes in, ``t`` seconds of running time comes out; a resumed launch goes on where
its files end, so that the time in between is in no figure. The account is not the truth (``store``
is): rows of steps that were not committed are cut by ``store.files.truncate_jsonl`` before a job
resumes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.core.ids import RunId
from plait.obs.jsonl import JsonlWriter, dumps, read_jsonl
from plait.obs.layout import LaunchLayout
from plait.obs.records import (
    DECISIONS_VERSION,
    Evaluation,
    LaunchInfo,
    SampleRecord,
    Span,
    StepMetrics,
    as_row,
    plain,
)
from plait.obs.standing import read_standing
from plait.obs.trackers import Tracker
from plait.store.files import write_whole

LASTING = frozenset(
    ("worker_ready", "worker_lost", "added", "finished", "failed", "cancelled", "error")
)
"""Events that a launch without an end keeps: a few for each run, not some for each step."""


class JobRecorder:
    """The logs of one job."""

    def __init__(self, launch: "Recorder", name: str, run_id: RunId) -> None:
        self.name, self.run_id = name, run_id
        self.layout = launch.layout.job(name)
        self._launch = launch
        self._metrics = JsonlWriter(self.layout.metrics)
        self._samples = JsonlWriter(self.layout.samples)
        self.trackers: tuple[Tracker, ...] = ()
        """Where figures go besides the job's own file."""
        self.standing = read_standing(self.layout)
        """The job's last figures, those of an earlier life included."""

    def metrics(self, row: StepMetrics, *, now: float) -> None:
        """One training step, at its end."""
        self._write(row, now)

    def evaluation(self, row: Evaluation, *, now: float) -> None:
        """One held-out evaluation, at its end."""
        self._write(row, now)

    def sample(self, row: SampleRecord) -> None:
        """One sample, rewarded or not."""
        self._samples.write(as_row(row))

    def event(self, kind: str, *, now: float, **detail: Any) -> None:
        """Something that happened to this job."""
        self._launch.event(kind, now=now, run=self.run_id, **detail)

    def _write(self, row: StepMetrics | Evaluation, now: float) -> None:
        values = as_row(row)
        self.standing = self.standing.after(values)
        self._metrics.write({"t": self._launch.t(now), **values})
        figures = {k: v for k, v in values.items() if isinstance(v, int | float)}
        for tracker in self.trackers:
            tracker.log(row.step, figures)

    def close(self) -> None:
        """Close the job's files."""
        self._metrics.close()
        self._samples.close()


class Recorder:
    """The logs of a launch, and its jobs' recorders."""

    def __init__(
        self,
        launch_dir: str | Path,
        *,
        origin_s: float,
        before_s: float | None = None,
        policy_options: Mapping[str, Any] | None = None,
        sparse: bool = False,
    ) -> None:
        """``origin_s``: now, on the runtime's clock. ``before_s``: running time that lies behind;
        by default what the files say (0 for a new launch). ``policy_options`` belong to the
        policy's name in every decision: without them it could not be computed again.
        ``sparse``: of the launch itself only what ``LASTING`` names is written, for one that runs
        for months."""
        self.layout = LaunchLayout(Path(launch_dir))
        self._offset_s = (running_s(launch_dir) if before_s is None else before_s) - origin_s
        self._policy_options, self._sparse = dict(policy_options or {}), sparse
        self._spans = JsonlWriter(self.layout.workers)
        self._events = JsonlWriter(self.layout.events)
        self._decisions = JsonlWriter(self.layout.decisions)
        self._jobs: dict[str, JobRecorder] = {}

    def t(self, now: float) -> float:
        """Running time of the launch at ``now``, seconds."""
        return round(now + self._offset_s, 6)

    def launch(self, info: LaunchInfo) -> None:
        """Write ``launch.json``, whole or not at all."""
        write_whole(self.layout.info, [dumps(as_row(info)) + "\n"])

    def span(self, span: Span) -> None:
        """A stretch of a worker's time."""
        if self._sparse:
            return
        self._spans.write({**as_row(span), "t0": self.t(span.t0), "t1": self.t(span.t1)})

    def event(self, kind: str, *, now: float, run: RunId | None = None, **detail: Any) -> None:
        """Something that happened; what happened to the launch itself has no run."""
        if not self.keeps(kind):
            return
        self._events.write({**plain(detail), "t": self.t(now), "run": run, "kind": kind})

    def keeps(self, kind: str) -> bool:
        """Events of that kind are written."""
        return not self._sparse or kind in LASTING

    def outside(self, what: str, *, run: RunId, key: str, t0: float, t1: float) -> None:
        """Time spent outside the workers: a ``tool`` call or a ``reward``; ``key`` tells them
        apart."""
        if self._sparse:
            return
        self._events.write(
            {
                "t": self.t(t1),
                "run": run,
                "kind": "outside",
                "what": what,
                "key": key,
                "t0": self.t(t0),
                "t1": self.t(t1),
            }
        )

    def decision(
        self, kind: str, *, policy: str, view: object, state: object, plan: object, now: float
    ) -> None:
        """A policy's answer and all that it was told; ``now`` is kept as the policy saw it."""
        if self._sparse:
            return
        self._decisions.write(
            {
                "version": DECISIONS_VERSION,
                "t": self.t(now),
                "now": now,
                "policy": policy,
                "options": self._policy_options,
                "kind": kind,
                "view": plain(view),
                "state": plain(state),
                "plan": plain(plan),
            }
        )

    def job(self, name: str, run_id: RunId) -> JobRecorder:
        """The recorder of a job; asked again, the same one."""
        if name not in self._jobs:
            self._jobs[name] = JobRecorder(self, name, run_id)
        return self._jobs[name]

    def found(self, name: str) -> JobRecorder | None:
        """The recorder of a job, if it was asked for already. Its files must be in order before."""
        return self._jobs.get(name)

    def forget(self, name: str) -> None:
        """Let go of a job's recorder: the job has ended."""
        if (job := self._jobs.pop(name, None)) is not None:
            job.close()

    def added(self, name: str, run_id: RunId, *, now: float, **detail: Any) -> JobRecorder:
        """Enter a job: from this event on its run is known by its name."""
        recorder = self.job(name, run_id)
        recorder.event("added", now=now, job=name, **detail)
        return recorder

    def close(self) -> None:
        """Close every file."""
        for job in self._jobs.values():
            job.close()
        for writer in (self._spans, self._events, self._decisions):
            writer.close()


def running_s(launch_dir: str | Path) -> float:
    """How long a launch has run by its own account; 0 if there is none."""
    layout = LaunchLayout(Path(launch_dir))
    times = [row.get("t1", row.get("t")) for row in read_jsonl(layout.workers)]
    times += [row.get("t") for row in read_jsonl(layout.events)]
    return max((float(t) for t in times if isinstance(t, int | float)), default=0.0)
