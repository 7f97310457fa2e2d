"""``plait demo``: the same three jobs shared and one after the other, and what sharing gained."""

import asyncio
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from rich.table import Table

from plait.cli.console import show, show_json
from plait.cli.run import check_new, conclude, drive
from plait.core.runs import Stage
from plait.jobs.load import load_jobs
from plait.obs.intervals import difference_ci95
from plait.obs.launch import read_launch
from plait.obs.layout import LaunchLayout
from plait.obs.report import make_report
from plait.obs.stats import tpts_by_job
from plait.runtime.settings import Settings


def demo_command(directory: Path | None, *, cores: int, as_json: bool) -> int:
    """Run the demo and print its table; exit code 1 if a job failed."""
    if directory is not None:
        check_new(directory)
    root = directory or Path(tempfile.mkdtemp(prefix="plait-demo-"))
    with as_file(files("plait.jobs") / "demo.yaml") as file:
        specs = load_jobs([file])
    settings = Settings(cores=cores)
    for policy in ("plait", "sequential"):
        if not as_json:
            print(f"\n{policy}: {', '.join(s.name for s in specs)}", flush=True)
        outcomes = asyncio.run(
            drive(specs, root / policy, policy=policy, settings=settings, quiet=as_json)
        )
        if any(o.stage is not Stage.DONE for o in outcomes.values()) or len(outcomes) < len(specs):
            names = [spec.name for spec in specs]
            return conclude(outcomes, names, root / policy, as_json=as_json)
    result = compare(root / "plait", root / "sequential")
    if as_json:
        show_json(result)
    else:
        _print(result)
        make_report(
            root / "plait",
            alone=root / "sequential",
            picture=LaunchLayout(root / "plait").report,
        )
        print(f"picture: {LaunchLayout(root / 'plait').report}")
    return 0


def compare(shared_dir: Path, alone_dir: Path) -> dict[str, object]:
    """Aggregate speed-up, each job's stretch and held-out gain."""
    shared = make_report(shared_dir, alone=alone_dir)
    alone = make_report(alone_dir)
    alone_s = tpts_by_job(read_launch(alone_dir))
    jobs = {}
    for job in shared.stats.jobs:
        gain = (
            difference_ci95(job.reward_first, job.reward_last)
            if job.reward_first and job.reward_last
            else None
        )
        jobs[job.name] = {
            "tpts_s": job.tpts_s,
            "alone_tpts_s": alone_s.get(job.name),
            "stretch": job.stretch,
            "held_out_first": job.reward_first.mean if job.reward_first else None,
            "held_out_last": job.reward_last.mean if job.reward_last else None,
            "gain": gain.mean if gain else None,
            "gain_ci95": [gain.low, gain.high] if gain else None,
        }
    stretches = [job.stretch for job in shared.stats.jobs if job.stretch]
    return {
        "shared_s": shared.stats.wall_s,
        "sequential_s": alone.stats.wall_s,
        "aggregate": shared.stats.aggregate_speedup,
        "wall_ratio": alone.stats.wall_s / shared.stats.wall_s,
        "worst_stretch": max(stretches, default=None),
        "jobs": jobs,
    }


def _print(result: dict[str, object]) -> None:
    table = Table("job", "s/step shared", "s/step alone", "stretch", "held-out", "gain (95 %)")
    jobs = result["jobs"]
    assert isinstance(jobs, dict)
    for name, row in jobs.items():
        low, high = row["gain_ci95"] or (None, None)
        table.add_row(
            name,
            *(_told(row[key]) for key in ("tpts_s", "alone_tpts_s", "stretch")),
            f"{_told(row['held_out_first'])} → {_told(row['held_out_last'])}",
            f"{_told(row['gain'], '+')} ({_told(low, '+')} … {_told(high, '+')})",
        )
    show(table)
    print(
        f"shared: {_told(result['aggregate'])}× the steps per hour (medians) of one job after "
        f"another (worst stretch {_told(result['worst_stretch'])}); "
        f"same work in {result['shared_s']:.0f} s instead of {result['sequential_s']:.0f} s"
    )


def _told(value: object, sign: str = "") -> str:
    """A figure, or a dash where there is none (a job of one step has no time between steps)."""
    return f"{value:{sign}.2f}" if isinstance(value, int | float) else "–"
