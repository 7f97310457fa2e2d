"""Live: shows snapshots while jobs run; a table on a terminal, plain lines elsewhere.

A view is told, it never asks: whoever owns the launch calls ``update``. Plain lines come when a
job makes a step or changes its stage for good, at most one per job and ``LINE_S`` (ends always
show), so that a log of a night stays readable.
"""

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from plait.obs.snapshot import JobLine, Snapshot, WorkerLine

LINE_S = 2.0
"""Least time between two plain lines of one job that is still going on."""

STAGE_STYLES = {
    "rollout": "cyan",
    "reward": "magenta",
    "train": "green",
    "done": "bold green",
    "failed": "bold red",
    "cancelled": "red",
    "paused": "yellow",
}
ENDED = ("done", "failed", "cancelled")


class View(Protocol):
    """Something that shows snapshots, as a context."""

    def update(self, snapshot: Snapshot) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def make_view(console: Console) -> View:
    """The view that suits where the output goes."""
    return TableView(console) if console.is_terminal else LineView(console)


class TableView:
    """A table that is redrawn in place; the last one stays on the screen."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)

    def update(self, snapshot: Snapshot) -> None:
        """Draw."""
        self._live.update(render(snapshot), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()


class LineView:
    """One line per step or change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, tuple[JobLine, float]] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Print what is new."""
        for job in snapshot.jobs:
            last = self._shown.get(job.name)
            if last is not None:
                line, t = last
                ended = job.stage in ENDED and line.stage != job.stage
                recent = snapshot.t - t < LINE_S
                if not ended and (recent or _said(line) == _said(job)):
                    continue
            self._shown[job.name] = (job, snapshot.t)
            self._console.print(
                job_line(job, snapshot.t), highlight=False, markup=False, soft_wrap=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


def job_line(job: JobLine, t: float) -> str:
    """A job's state in one line."""
    at = " at" if job.stage == "resuming" else ","
    parts = [f"[{_clock(t)}] {job.name}: {job.stage}{at} step {_steps(job)}"]
    if job.reward is not None:
        parts.append(f"reward {job.reward:.3f}")
    if job.eval_reward is not None:
        parts.append(f"held-out {job.eval_reward:.3f}")
    if job.tpts_s is not None:
        parts.append(f"{job.tpts_s:.1f} s/step")
    if job.wait:
        parts.append(f"waits: {_wait(job)}")
    if job.error:
        parts.append(job.error)
    return ", ".join(parts)


def render(snapshot: Snapshot) -> Group:
    """The tables of jobs and of workers."""
    title = Text.assemble(
        ("plait ", "bold"),
        f"{snapshot.policy} · {snapshot.model} · {_clock(snapshot.t)}",
    )
    return Group(title, _jobs(snapshot.jobs), _workers(snapshot.workers))


def _jobs(jobs: tuple[JobLine, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    table.add_column("job", no_wrap=True, style="bold")
    table.add_column("stage", no_wrap=True)
    for name in ("step", "version", "reward", "held-out", "s/step", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("waiting for", overflow="fold")
    for job in jobs:
        table.add_row(
            job.name,
            Text(job.stage, style=STAGE_STYLES.get(job.stage, "dim")),
            _steps(job),
            f"v{job.version}",
            _number(job.reward, 3),
            _number(job.eval_reward, 3),
            _number(job.tpts_s, 1),
            f"{job.tokens:,}",
            Text(job.error, style="red") if job.error else Text(_wait(job), style="yellow"),
        )
    return table


def _workers(workers: tuple[WorkerLine, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    table.add_column("worker", no_wrap=True, style="bold")
    table.add_column("runs", no_wrap=True)
    for name in ("tokens/s", "threads", "busy", "KV cache"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("for", overflow="fold")
    for worker in workers:
        used = f"{worker.kv_blocks_used / worker.kv_blocks:.0%}" if worker.kv_blocks else "–"
        table.add_row(
            worker.name,
            Text(worker.doing, style=STAGE_STYLES.get(worker.doing, "dim")),
            f"{worker.tokens_per_s:,.0f}",
            str(worker.threads or "–"),
            f"{worker.busy_share:.0%}",
            used,
            ", ".join(worker.jobs),
        )
    return table


def _said(job: JobLine) -> tuple[object, ...]:
    """What makes a new line worth printing: stages pass too often to tell each."""
    return (job.step, job.eval_reward, job.stage in ENDED, job.stage == "paused", job.error)


def _steps(job: JobLine) -> str:
    return f"{job.step}/{job.max_steps}" if job.max_steps else str(job.step)


def _wait(job: JobLine) -> str:
    return f"{job.wait} (number {job.position})" if job.wait and job.position else job.wait


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _clock(t: float) -> str:
    minutes, seconds = divmod(int(t), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"
