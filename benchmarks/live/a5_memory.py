"""A5: memory of four jobs on one model: proportional set size of the head and all its processes."""

import asyncio
import os
import tempfile
from pathlib import Path

import psutil

from benchmarks.figure import Measured
from benchmarks.live.search_jobs import search_jobs
from plait.cli.run import drive
from plait.runtime.settings import Settings

AT_MOST_GB = 2.5
SAMPLE_S = 0.5


def measure() -> Measured:
    """The peak of the summed PSS while four jobs roll out and train."""
    peak: dict[str, float] = {"gb": 0.0}
    at_peak: dict[str, float] = {}
    weights: dict[str, float] = {}

    async def watch() -> None:
        while True:
            parts = _pss_by_process()
            if sum(parts.values()) > peak["gb"]:
                peak["gb"] = sum(parts.values())
                at_peak.clear()
                at_peak.update(parts)
                weights.update(_mapped_weights())
            await asyncio.sleep(SAMPLE_S)

    async def both() -> None:
        watching = asyncio.create_task(watch())
        directory = Path(tempfile.mkdtemp(prefix="plait-bench-"))
        try:
            await drive(
                search_jobs(0.5, steps=2),
                directory,
                policy="plait",
                settings=Settings(),
                quiet=True,
            )
        finally:
            watching.cancel()

    asyncio.run(both())
    return Measured(
        value=AT_MOST_GB / peak["gb"],
        ok=peak["gb"] <= AT_MOST_GB,
        detail={
            "at_most": AT_MOST_GB,
            "gb": peak["gb"],
            "gb_by_process": at_peak,
            "weights_pss_gb": weights,
        },
    )


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
