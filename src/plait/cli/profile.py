"""``plait profile``: what a model takes on this machine, alone and side by side."""

import os
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from plait.cli.console import show, show_json
from plait.cluster.bench import BenchProcess, measure
from plait.cluster.profiling import FULL, QUICK, Profiling, Result
from plait.core.errors import ConfigError
from plait.models.cache import cache_root
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.profiles.table import save
from plait.runtime.settings import Settings
from plait.sim.costs.measured import write_profile
from plait.store.files import disk_errors

COSTS, SLOWDOWN = "costs.json", "slowdown.json"
"""What the simulator's cost model reads, and what ``profiles.table`` reads."""


def profile_command(
    model: str, *, asked: Settings, out: Path | None, quick: bool, as_json: bool
) -> int:
    """Measure ``model`` and write both files; ConfigError if the place cannot be written to."""
    model_dir = resolve(model)
    settings = asked.resolve(read_shape(model_dir, name=model))
    on_cpu = settings.device == "cpu"
    cores = sorted(os.sched_getaffinity(0))[: settings.cores] if on_cpu else []
    where = settings.device.replace(":", "") if not on_cpu else f"{len(cores)}"
    place = out or cache_root() / "profiles" / f"{Path(model).name}-{where}"
    with disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    if not os.access(place, os.W_OK):
        raise ConfigError(f"{place} cannot be written to: give --out another directory")
    plan = QUICK if quick else FULL
    profiling = Profiling(plan, model=model, device=settings.device, cores=cores)
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bench.log"
        processes = [
            stack.enter_context(
                BenchProcess(
                    model_dir,
                    cores=settings.cores,
                    cache_tokens=plan.cache_tokens,
                    log=log,
                    device=settings.device,
                    dtype=settings.dtype,
                )
            )
            for _ in range(2 if profiling.pairs else 1)
        ]
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        task = progress.add_task("loading", total=profiling.n_measurements)

        def told(what: str) -> None:
            progress.update(task, description=what, advance=1)

        result = profiling.run(
            lambda asks: measure(processes, asks, units=plan.units, least_s=plan.least_s), told
        )
    with disk_errors(place):
        write_profile(result.costs, place / COSTS)
        save(result.points, place / SLOWDOWN, model=model, device=settings.device, cores=len(cores))
    if as_json:
        show_json({**asdict(result), "directory": str(place)})
    else:
        _print(result, place)
    return 0


def _print(result: Result, place: Path) -> None:
    costs = result.costs
    decode = Table("decode rows", "cached tokens", "ms/step", "tokens/s")
    for p in costs.decode:
        rate = f"{p.rows / p.seconds:.0f}"
        decode.add_row(str(p.rows), str(p.context), f"{p.seconds * 1e3:.1f}", rate)
    show(decode)
    alone = Table("alone", "threads", "ms")
    for name, threads, seconds in result.alone:
        alone.add_row(name, str(threads), f"{seconds * 1e3:.1f}")
    show(alone)
    if result.points:
        points = Table("work", "share", "beside", "slowdown")
        for point in result.points:
            beside = f"{point.beside} {point.beside_tokens}" if point.beside else "nobody"
            own = f"{point.own} {point.own_tokens}"
            points.add_row(own, f"{point.compute:.2f}", beside, f"{point.slowdown:.2f}")
        show(points)
    print(
        f"prefill {costs.prefill_tokens_per_s:.0f}, training {costs.train_tokens_per_s:.0f}, "
        f"reference {costs.reference_tokens_per_s:.0f} tokens/s; each update "
        f"{(costs.train_overhead_s or 0) * 1e3:.0f} ms, adapters "
        f"{(costs.adapter_step_s or 0) * 1e3:.1f} ms a step, a publication "
        f"{(costs.sync_s or 0) * 1e3:.0f} ms"
    )
    for what in result.skipped:
        print(f"too slow to be counted: {what}")
    print(f"written to {place}: {COSTS} for the simulator, {SLOWDOWN} for co-location")
