"""Report: several schemes' outcomes on one workload as a table, as JSON, and as pictures.

The figures are ``summary``'s, the pictures ``figures``'; here they become what is printed and
written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from plait.core.errors import StoreError
from plait.obs.jsonl import dumps
from plait.obs.records import plain
from plait.sim.outcome import Outcome
from plait.sim.summary import Alone, Summary, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation of a sweep."""

    setting: str
    """What was varied, ``jobs=4``; empty where nothing was."""
    outcome: Outcome
    summary: Summary

    @property
    def name(self) -> str:
        """For file names and JSON."""
        return f"{self.summary.scheme},{self.setting}" if self.setting else self.summary.scheme


def case(
    outcome: Outcome,
    *,
    setting: str = "",
    alone: Mapping[str, Alone] | None = None,
    price: float | None = None,
) -> Case:
    """An outcome with its figures."""
    found = summarise(outcome, alone=alone, price=price)
    return Case(setting=setting, outcome=outcome, summary=found)


def to_json(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The figures as JSON values, one row for each case."""
    return [{"setting": one.setting, **plain(one.summary)} for one in cases]


def to_text(cases: Sequence[Case]) -> Group:
    """The figures as tables: one row for each case, then the jobs of each that has few."""
    parts: list[Any] = [_table(cases)]
    parts += [_jobs(one) for one in cases if len(one.summary.jobs) <= MOST_JOBS and len(cases) == 1]
    for one in cases:
        cut = [job for job in one.summary.jobs if job.ended != "done"]
        if cut:
            parts.append(Text(f"{one.name}: {len(cut)} jobs {cut[0].ended}", style="red"))
    return Group(*parts)


MOST_JOBS = 20
"""Jobs that are listed one by one; more are read from the JSON."""


def make_place(out: Path) -> None:
    """Make ``out``, before anything is computed for it; StoreError if the disk refuses."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise StoreError(f"cannot write {out} ({error.strerror}): give another --out") from error


def write(cases: Sequence[Case], out: Path) -> list[Path]:
    """``report.json`` and the pictures in ``out``; their paths. StoreError if the disk refuses."""
    from plait.sim.figures import draw

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_text(dumps(to_json(cases)) + "\n", encoding="utf-8")
        return [out / "report.json", *(draw(one, out) for one in cases)]
    except OSError as error:
        raise StoreError(f"cannot write {out} ({error.strerror}): give another --out") from error


def _table(cases: Sequence[Case]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    swept = any(one.setting for one in cases)
    priced = any(one.summary.cost is not None for one in cases)
    if swept:
        table.add_column("setting", no_wrap=True)
    table.add_column("scheme", style="bold", no_wrap=True)
    names = ["makespan", "speed-up", "worst stretch", "TTFS mean", "median", "TPTS", "busy", "MFU"]
    names += ["device-h/step", "switches"]
    for name in [*names, *(["cost"] if priced else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for one in cases:
        s = one.summary
        cells = [one.setting] if swept else []
        cells += [
            s.scheme,
            seconds(s.makespan_s),
            _number(s.speedup, "×"),
            _number(s.worst_stretch),
            seconds(s.ttfs_mean_s),
            seconds(s.ttfs_median_s),
            seconds(s.tpts_s),
            f"{s.utilisation:.0%}",
            f"{s.mfu:.1%}",
            "–" if s.device_hours_per_step is None else f"{s.device_hours_per_step:.3g}",
            f"{s.switch_share:.1%}",
        ]
        if priced:
            cells.append("–" if s.cost is None else f"{s.cost:,.2f}")
        table.add_row(*cells)
    return table


def _jobs(one: Case) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("job", style="bold", no_wrap=True)
    for name in ("steps", "queued", "TTFS", "TPTS", "stretch", "done after"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("most of its waiting")
    for job in one.summary.jobs:
        waits = sorted(job.waits_s.items(), key=lambda item: -item[1])[:2]
        table.add_row(
            job.name,
            str(job.steps),
            seconds(job.queue_s),
            seconds(job.ttfs_s),
            seconds(job.tpts_s),
            _number(job.stretch),
            seconds(job.jct_s),
            ", ".join(f"{reason} {seconds(waited_s)}" for reason, waited_s in waits),
        )
    return table


def seconds(value: float | None) -> str:
    """A duration for people."""
    if value is None:
        return "–"
    if value >= 48 * 3600:
        return f"{value / 86_400:.1f} d"
    if value >= 120 * 60:
        return f"{value / 3600:.1f} h"
    if value >= 120:
        return f"{value / 60:.1f} min"
    return f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def _number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:.2f}{unit}"
