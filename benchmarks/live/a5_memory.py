"""A5: memory of four jobs on one model: proportional set size of the head and all its processes.

Measured as it is and with ``--lean``; the bar is judged on the former.
"""

import asyncio
import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from benchmarks.figure import Measured
from benchmarks.live.search_jobs import search_jobs
from plait.cli.run import drive
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
    usual, lean = (asyncio.run(_peak(Settings(lean=lean))) for lean in (False, True))
    return Measured(
        value=AT_MOST_GB / usual.gb,
        ok=usual.gb <= AT_MOST_GB,
        detail={"at_most": AT_MOST_GB, **asdict(usual), "lean": asdict(lean)},
    )


async def _peak(settings: Settings) -> Peak:
    peak = Peak(gb=0.0, gb_by_process={}, weights_pss_gb={}, seconds=0.0)

    async def watch() -> None:
        nonlocal peak
        while True:
            parts = _pss_by_process()
            if (gb := sum(parts.values())) > peak.gb:
                mapped = _mapped_weights()
                peak = Peak(gb=gb, gb_by_process=parts, weights_pss_gb=mapped, seconds=0.0)
            await asyncio.sleep(SAMPLE_S)

    watching = asyncio.create_task(watch())
    directory = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    jobs, start = search_jobs(0.5, steps=2), time.perf_counter()
    try:
        await drive(jobs, directory, policy="plait", settings=settings, quiet=True)
    finally:
        watching.cancel()
    return replace(peak, seconds=time.perf_counter() - start)


def _family() -> list[psutil.Process]:
    me = psutil.Process(os.getpid())
    return [me, *me.children(recursive=True)]


def _pss_by_process() -> dict[str, float]:
    parts = {}
    for process in _family():
        try:
            name = " ".join(process.cmdline()[1:4])[-40:]
            parts[f"{process.pid} {name}"] = process.memory_full_info().pss / 1e9
        except psutil.Error:
            continue
    return parts


def _mapped_weights() -> dict[str, float]:
    """PSS of the fused weight file by process: mapped once, so the sum is its size at most."""
    found: dict[str, float] = {}
    for process in _family():
        try:
            maps = process.memory_maps(grouped=True)
        except psutil.Error:
            continue
        for entry in maps:
            if entry.path.endswith(".safetensors"):
                found[str(process.pid)] = found.get(str(process.pid), 0.0) + entry.pss / 1e9
    return found
