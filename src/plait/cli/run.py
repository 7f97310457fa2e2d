"""``plait run``: load, check, launch, watch, and say how it went."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from plait.cli.watch import watch
from plait.core.errors import ConfigError
from plait.core.runs import Stage
from plait.envs.protocol import TaskSource
from plait.jobs.launch import Launch, Outcome, load_controller, make_source_of
from plait.jobs.load import load_jobs
from plait.jobs.spec import JobSpec
from plait.models.registry import resolve
from plait.models.tokenizer import Tokenizer
from plait.obs.layout import LaunchLayout
from plait.obs.trace import write_trace
from plait.policies.protocol import Sharing
from plait.runtime.settings import Settings

INTERRUPTED = 130


def run_command(
    files: Sequence[Path],
    *,
    policy: str,
    directory: Path | None,
    resume: Path | None,
    cores: int,
    kv_blocks: int,
    as_json: bool,
) -> int:
    """Train the jobs of ``files`` (or of the launch ``resume``) at once; the exit code."""
    if (resume is None) == (not files):
        raise ConfigError("give job files, or --resume DIR")
    if resume is not None:
        specs, target = resumable(resume), resume
    else:
        specs = load_jobs(files)
        target = directory or Path("runs") / f"{files[0].stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        if (target / "launch.json").exists():
            raise ConfigError(f"{target} holds a launch already: use --resume {target}")
    settings = Settings(cores=cores, kv_blocks=kv_blocks)
    outcomes = asyncio.run(drive(specs, target, policy=policy, settings=settings))
    return conclude(outcomes, target, as_json=as_json)


def resumable(directory: Path) -> tuple[JobSpec, ...]:
    """The jobs of a launch that have not ended well or been cancelled."""
    from plait.store.rows import RunStatus
    from plait.store.store import Store

    layout = LaunchLayout(directory)
    if not layout.info.is_file():
        raise ConfigError(f"{directory} is no launch directory: it has no launch.json")
    configs = [layout.job(name).config for name in layout.job_names()]
    specs = load_jobs([c for c in configs if c.is_file()])
    with Store.at(layout.store) as store:
        ended = {
            row.name
            for row in store.runs.list()
            if row.status in (RunStatus.DONE, RunStatus.CANCELLED)
        }
    left = tuple(s for s in specs if s.name not in ended)
    if not left:
        raise ConfigError(f"every job of {directory} has ended: there is nothing to resume")
    return left


async def drive(
    specs: Sequence[JobSpec],
    directory: Path,
    *,
    policy: str | Sharing,
    settings: Settings,
    quiet: bool = False,
) -> dict[str, Outcome]:
    """Run the jobs to their end; everything wrong with them is found before a worker starts.

    A first Ctrl-C stops in order and leaves everything resumable; jobs cut short have no outcome.
    """
    if len({s.model for s in specs}) != 1:
        names = ", ".join(sorted({s.model for s in specs}))
        raise ConfigError(f"the jobs name several models ({names}): run each model by itself")
    tokenizer = Tokenizer(await asyncio.to_thread(resolve, specs[0].model))
    sources: list[TaskSource] = [make_source_of(spec, tokenizer) for spec in specs]
    for spec in specs:
        load_controller(spec)
    launch = Launch(directory, model=specs[0].model, policy=policy, settings=settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with launch:
            for spec, source in zip(specs, sources, strict=True):
                launch.add_job(spec, source)
            finished = asyncio.create_task(launch.wait_all())
            watching = asyncio.create_task(watch(launch, quiet=quiet))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({finished, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, stopped):
                task.cancel()
            await asyncio.gather(watching, stopped, return_exceptions=True)
            if finished.done():
                outcomes = finished.result()
            else:
                finished.cancel()
                outcomes = launch.outcomes()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    write_trace(directory)
    return outcomes


def conclude(outcomes: dict[str, Outcome], directory: Path, *, as_json: bool) -> int:
    """Print how each job ended; the exit code."""
    layout = LaunchLayout(directory)
    cut_short = [name for name in layout.job_names() if name not in outcomes]
    if as_json:
        rows = {n: {"stage": o.stage.value, "reason": o.reason} for n, o in outcomes.items()}
        print(json.dumps({"directory": str(directory), "jobs": rows, "interrupted": cut_short}))
    else:
        for name, outcome in outcomes.items():
            print(f"{name}: {outcome.stage.value}: {outcome.reason}")
        print(f"launch directory: {directory}  (plait report {directory})")
    if cut_short:
        print(f"interrupted: go on with  plait run --resume {directory}", file=sys.stderr)
        return INTERRUPTED
    return 0 if all(o.stage is Stage.DONE for o in outcomes.values()) else 1
