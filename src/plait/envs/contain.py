"""Contain: what a user's code raises ends its own sample or job, whatever it is.

asyncio lets SystemExit and KeyboardInterrupt out of a task and so ends every job at once, with the
exit code that the user's code happened to give; a CancelledError nobody asked for looks like the
end of the launch. Here they become errors like any other.
"""

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import plait
from plait.core.errors import ConfigError, EnvironmentFailure, PlaitError
from plait.core.text import told

_OURS = str(Path(plait.__file__).parent)


@contextmanager
def contained(what: str) -> Iterator[None]:
    """Run a user's code: ordinary exceptions pass, all others become EnvironmentFailure."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if _is_meant(error):
            raise
        raise EnvironmentFailure(f"{what} raised {told(error)}{_place(error)}") from error


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Import or make a user's code: whatever it raises becomes a ConfigError that says where."""
    try:
        yield
    except PlaitError:
        raise
    except BaseException as error:  # a user's code: what it may raise is not ours to know
        if _is_meant(error):
            raise
        raise ConfigError(f"{what}: {told(error)}{_place(error)}") from error


def _is_meant(error: BaseException) -> bool:
    """True for what stops plait itself: in a task that is being cancelled (a deadline, a stop, a
    second Ctrl-C) and, outside of tasks, for Ctrl-C and for a coroutine that is thrown away."""
    if isinstance(error, Exception):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs
        task = None
    if task is None:
        return isinstance(error, KeyboardInterrupt | GeneratorExit)
    return task.cancelling() > 0


def _place(error: BaseException) -> str:
    """Where in the user's files it was raised, if it was there."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    for frame in frames:
        if not frame.filename.startswith((_OURS, "<")):
            return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""
