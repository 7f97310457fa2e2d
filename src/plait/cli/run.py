"""``plait run``: load, check, launch, watch, and say how it went."""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from plait.cli.console import show_json
from plait.cli.entry import INTERRUPTED
from plait.cli.prepare import one_model, open_sources
from plait.cli.resume import left_of, overridden
from plait.cli.watch import watch
from plait.core.errors import ConfigError, EngineError, PlaitError
from plait.core.runs import Stage
from plait.jobs.launch import Launch, Outcome
from plait.jobs.load import load_jobs
from plait.jobs.preflight import preflight
from plait.jobs.room import room_of
from plait.jobs.spec import JobSpec
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.models.tokenizer import Tokenizer
from plait.obs.trace import write_trace
from plait.policies.protocol import Sharing
from plait.policies.registry import DEFAULT
from plait.policies.registry import make as make_policy
from plait.runtime.settings import Settings


def run_command(
    files: Sequence[Path],
    *,
    policy: str | None,
    directory: Path | None,
    resume: Path | None,
    asked: Settings,
    options: Sequence[str],
    as_json: bool,
) -> int:
    """Train the jobs of ``files`` (or of the launch ``resume``) at once; the exit code."""
    if (resume is None) == (not files):
        raise ConfigError("give job files, or --resume DIR")
    if resume is not None:
        if directory is not None:
            raise ConfigError("--resume goes on in its own directory: leave --dir out")
        left, target = left_of(resume), resume
        specs = left.specs
        kept = {} if policy else left.options
        sharing = make_policy(policy or left.policy, **{**kept, **policy_options(options)})
        settings = overridden(left.settings, asked)
    else:
        specs = load_jobs(files)
        sharing = make_policy(policy or DEFAULT, **policy_options(options))
        target = directory or Path("runs") / f"{files[0].stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        check_new(target)
        settings = asked
    try:
        outcomes = asyncio.run(
            drive(specs, target, policy=sharing, settings=settings, quiet=as_json)
        )
    except KeyboardInterrupt:  # a second Ctrl-C: what is committed is as safe as after a crash
        if not (target / "launch.json").exists():
            raise  # nothing was begun
        _say_how_to_resume(target)
        return INTERRUPTED
    except SystemExit as error:  # out of a task that a user's code started by itself
        raise EngineError(
            f"a user's code called sys.exit({error.code}) in a task of its own: see {target}/logs; "
            f"go on with plait run --resume {target}"
        ) from error
    return conclude(outcomes, [spec.name for spec in specs], target, as_json=as_json)


def policy_options(pairs: Sequence[str]) -> dict[str, str | int | float]:
    """``key=value`` of ``--option``; the policy itself refuses what it does not know."""
    options: dict[str, str | int | float] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not (key and sign and value):
            raise ConfigError(f"--option {pair}: write it as key=value, such as dispatch=fifo")
        whole, _, parts = value.partition(".")
        if value.isdecimal():
            options[key] = int(value)
        else:
            options[key] = float(value) if whole.isdecimal() and parts.isdecimal() else value
    return options


def check_new(directory: Path) -> None:
    """ConfigError unless a launch may be made there: what a user owns is not mixed with ours."""
    if (directory / "launch.json").exists():
        raise ConfigError(f"{directory} holds a launch already: use --resume {directory}")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is not an empty directory: give --dir a new one")


async def drive(
    specs: Sequence[JobSpec],
    directory: Path,
    *,
    policy: str | Sharing,
    settings: Settings,
    quiet: bool = False,
) -> dict[str, Outcome]:
    """Run the jobs to their end; everything wrong with them is found before a worker starts.

    A first Ctrl-C stops in order and leaves everything resumable, a second one at once; jobs cut
    short have no outcome.
    """
    model = one_model(specs)
    sharing = make_policy(policy) if isinstance(policy, str) else policy
    model_dir = await asyncio.to_thread(resolve, model)
    shape = read_shape(model_dir, name=model)
    settings = settings.resolve(shape)
    tokenizer = Tokenizer(model_dir)
    async with open_sources(specs, tokenizer) as sources:
        with _stoppable():
            await preflight(specs, sources, room=room_of(shape, settings), tokenizer=tokenizer)
        if not quiet:
            print(f"launch directory: {directory}\nstarting workers", flush=True)
        launch = Launch(directory, model=model, policy=sharing, settings=settings, planned=specs)
        with _stopping() as stop:
            async with AsyncExitStack() as stack:
                if not await _up(launch, stack, stop):
                    return {}
                for spec, source in zip(specs, sources, strict=True):
                    launch.add_job(spec, source)
                outcomes = await _until_done(launch, stop, quiet=quiet)
    try:
        write_trace(directory)
    except PlaitError as error:
        print(f"no trace.json: {error}", file=sys.stderr)
    return outcomes


async def _up(launch: Launch, stack: AsyncExitStack, stop: asyncio.Event) -> bool:
    """Enter the launch; False if it was stopped before it was up, which undoes what it had begun:
    workers that read a model's weights are not waited for."""
    starting = asyncio.create_task(stack.enter_async_context(launch))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not starting.done():
            starting.cancel()
        await asyncio.gather(stopped, starting, return_exceptions=True)
    if starting.cancelled():
        return False
    starting.result()
    return True


async def _until_done(launch: Launch, stop: asyncio.Event, *, quiet: bool) -> dict[str, Outcome]:
    finished = asyncio.create_task(launch.wait_all())
    watching = asyncio.create_task(watch(launch, quiet=quiet))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({finished, stopped}, return_when=asyncio.FIRST_COMPLETED)
    done = finished.done()
    for task in (watching, stopped, finished):
        task.cancel()
    await asyncio.gather(watching, stopped, finished, return_exceptions=True)
    return finished.result() if done else launch.outcomes()


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM is a Ctrl-C (KeyboardInterrupt), and either wakes the loop, which otherwise hears of
    a signal that another thread was given only when the next timer is due."""
    loop, task, asked = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None

    def ask() -> None:
        asked.set()
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, ask)
    try:
        yield
    except asyncio.CancelledError:
        if asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextmanager
def _stopping() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second one has its usual effect."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, first)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def conclude(
    outcomes: dict[str, Outcome], names: Sequence[str], directory: Path, *, as_json: bool
) -> int:
    """Print how each job of ``names`` ended; the exit code."""
    cut_short = [name for name in names if name not in outcomes]
    if as_json:
        rows = {n: {"stage": o.stage.value, "reason": o.reason} for n, o in outcomes.items()}
        show_json({"directory": str(directory), "jobs": rows, "interrupted": cut_short})
    else:
        for name, outcome in outcomes.items():
            print(f"{name}: {outcome.stage.value}: {outcome.reason}")
        print(f"launch directory: {directory}  (plait report {directory})")
    if cut_short:
        _say_how_to_resume(directory)
        return INTERRUPTED
    return 0 if all(o.stage is Stage.DONE for o in outcomes.values()) else 1


def _say_how_to_resume(directory: Path) -> None:
    print(f"interrupted: go on with  plait run --resume {directory}", file=sys.stderr)
