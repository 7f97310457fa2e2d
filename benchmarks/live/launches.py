"""Launches: the same jobs under several policies, timed from the first job's entry to the last end.

Starting workers is left out of every time: it is paid once per launch, whatever the policy.
"""

import asyncio
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.cli.run import drive
from plait.core.errors import EngineError
from plait.core.runs import Stage
from plait.jobs.load import load_jobs
from plait.jobs.spec import JobSpec
from plait.obs.launch import Launch, read_launch
from plait.obs.stats import LaunchStats, launch_stats
from plait.policies.registry import make
from plait.runtime.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One launch, read back."""

    launch: Launch
    stats: LaunchStats
    wall_s: float
    work_s: float
    """Machine time of everything computed: at each moment the cores held, all of them at most."""


def specs_of(text: str) -> tuple[JobSpec, ...]:
    """Jobs of a YAML text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.yaml"
        file.write_text(text, encoding="utf-8")
        return load_jobs([file])


def run(
    specs: Sequence[JobSpec],
    policy: str,
    *,
    kv_blocks: int = 0,
    cores: int = 0,
    elastic: bool = True,
    **options: object,
) -> Run:
    """Run the jobs to their end; EngineError if one failed."""
    directory = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    settings = Settings(kv_blocks=kv_blocks, cores=cores, elastic=elastic)
    sharing = make(policy, **options)
    outcomes = asyncio.run(drive(specs, directory, policy=sharing, settings=settings, quiet=True))
    bad = {n: o.reason for n, o in outcomes.items() if o.stage is not Stage.DONE}
    if bad or len(outcomes) < len(specs):
        raise EngineError(f"{policy}: {bad or 'interrupted'} (see {directory})")
    return read(directory)


def read(directory: Path) -> Run:
    """A finished launch."""
    launch = read_launch(directory)
    added = [e["t"] for e in launch.events if e["kind"] == "added"]
    ended = [e["t"] for e in launch.events if e["kind"] == "finished"]
    cores = launch.info["machine"]["cores"]
    return Run(
        launch=launch,
        stats=launch_stats(launch),
        wall_s=max(ended) - min(added),
        work_s=machine_time(launch.spans, cores),
    )


def machine_time(spans: Iterable[Mapping[str, Any]], cores: int) -> float:
    """Seconds of the whole machine that ``spans`` held.

    While one worker gives a core to another both may be on it for a moment: that counts once.
    """
    changes = sorted(
        change
        for s in spans
        for change in ((s["t0"], s["threads"] / cores), (s["t1"], -s["threads"] / cores))
    )
    total = held = since = 0.0
    for t, change in changes:
        total += min(1.0, held) * (t - since)
        held, since = held + change, t
    return total


def spread(values: Iterable[float]) -> float:
    """Half the range over the median; 0 for a single value."""
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    return (ordered[-1] - ordered[0]) / 2 / middle if middle else 0.0
