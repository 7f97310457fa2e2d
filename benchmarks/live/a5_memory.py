"""A5: memory of four jobs on one model: proportional set size of the head and all its processes.

Measured as it is and with ``--lean``; the bar is judged on the former.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from benchmarks.figure import Measured
from benchmarks.live.search_jobs import search_jobs
from plait.cli.run import drive
from plait.core.runs import Stage
from plait.runtime.settings import Settings

AT_MOST_GB = 2.5
SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The launch at its largest."""

    gb: float
    gb_by_process: dict[str, float]
    weights_pss_gb: dict[str, float]
    seconds: float


def measure() -> Measured:
    """The peak of the summed PSS while four jobs roll out and train."""
    usual, lean = _peak(), _peak("--lean")
    return Measured(
        value=AT_MOST_GB / usual.gb,
        ok=usual.gb <= AT_MOST_GB,
        detail={"at_most": AT_MOST_GB, **asdict(usual), "lean": asdict(lean)},
    )


def _peak(*arguments: str) -> Peak:
    """Of a launch in a process of its own: what else this one has loaded does not count."""
    peak = Peak(gb=0.0, gb_by_process={}, weights_pss_gb={}, seconds=0.0)
    start = time.perf_counter()
    launch = subprocess.Popen([sys.executable, "-m", __name__, *arguments])
    while launch.poll() is None:
        family = _family(launch.pid)
        parts = _pss_by_process(family)
        if (gb := sum(parts.values())) > peak.gb:
            mapped = _mapped_weights(family)
            peak = Peak(gb=gb, gb_by_process=parts, weights_pss_gb=mapped, seconds=0.0)
        time.sleep(SAMPLE_S)
    if launch.returncode:
        raise RuntimeError("the launch failed: see above")
    return replace(peak, seconds=time.perf_counter() - start)


def _family(pid: int) -> list[psutil.Process]:
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.Error:
        return []


def _pss_by_process(family: list[psutil.Process]) -> dict[str, float]:
    parts = {}
    for process in family:
        try:
            name = " ".join(process.cmdline()[1:4])[-40:]
            parts[f"{process.pid} {name}"] = process.memory_full_info().pss / 1e9
        except psutil.Error:
            continue
    return parts


def _mapped_weights(family: list[psutil.Process]) -> dict[str, float]:
    """PSS of the fused weight file by process: mapped once, so the sum is its size at most."""
    found: dict[str, float] = {}
    for process in family:
        try:
            maps = process.memory_maps(grouped=True)
        except psutil.Error:
            continue
        for entry in maps:
            if entry.path.endswith(".safetensors"):
                found[str(process.pid)] = found.get(str(process.pid), 0.0) + entry.pss / 1e9
    return found


def launch(lean: bool) -> None:
    """What is measured."""
    directory = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    jobs, settings = search_jobs(0.5, steps=2), Settings(lean=lean)
    done = asyncio.run(drive(jobs, directory, policy="plait", settings=settings, quiet=True))
    if any(outcome.stage is not Stage.DONE for outcome in done.values()):
        raise SystemExit(f"a job failed: see {directory}")


if __name__ == "__main__":
    launch("--lean" in sys.argv)
