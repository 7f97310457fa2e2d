"""Trackers: metrics sent to wandb or trackio as well, if the user asks for it.

A tracker never stops a job: whatever it raises is reported once and the tracker is left out from
then on. Nothing leaves the machine unless the user says so: wandb is offline by default
(``WANDB_MODE``).
"""

import os
from collections.abc import Callable, Mapping
from contextvars import Context
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from plait.core.errors import ConfigError

TRACKERS = ("wandb", "trackio")


class Tracker(Protocol):
    """Where metrics go besides the job's own file."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record figures of one step."""
        ...

    def finish(self) -> None:
        """End the tracker's run."""
        ...


class _Run:
    """A run of wandb or of trackio, which share this part of their interface.

    Each lives in a context of its own: trackio keeps its current run in a context variable and ends
    it when another one starts, but the jobs of a launch run side by side.
    """

    def __init__(self, module: Any, arguments: Mapping[str, Any]) -> None:
        self._context = Context()
        self._run = self._context.run(lambda: module.init(**arguments))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._context.run(lambda: self._run.log(dict(metrics), step=step))

    def finish(self) -> None:
        self._context.run(self._run.finish)


class Guarded:
    """A tracker that cannot hurt: its first failure is reported, and is its last."""

    def __init__(self, name: str, tracker: Tracker, report: Callable[[str], None]) -> None:
        self._name, self._report = name, report
        self._tracker: Tracker | None = tracker

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record figures of one step."""
        if self._tracker is not None:
            self._try(lambda tracker: tracker.log(step, metrics))

    def finish(self) -> None:
        """End the tracker's run."""
        if self._tracker is not None:
            self._try(lambda tracker: tracker.finish())

    def _try(self, call: Callable[[Tracker], None]) -> None:
        assert self._tracker is not None
        try:
            call(self._tracker)
        except Exception as error:  # other people's code: what it may raise is not ours to know
            self._tracker = None
            self._report(f"tracker {self._name} is off: {type(error).__name__}: {error}")


def make_tracker(
    name: str,
    *,
    project: str,
    run_name: str,
    config: Mapping[str, Any],
    directory: Path,
    report: Callable[[str], None],
) -> Tracker:
    """Start a tracker. ConfigError if it is unknown or its package is missing; whatever fails later
    goes to ``report`` in one line."""
    if name not in TRACKERS:
        raise ConfigError(f"unknown tracker {name!r}: use one of {', '.join(TRACKERS)}")
    try:
        module = import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"tracker {name} needs its package: pip install 'plait[{name}]'"
        ) from error
    arguments: dict[str, Any] = {"project": project, "name": run_name, "config": dict(config)}
    if name == "wandb":
        arguments |= {
            "dir": str(directory),
            "mode": os.environ.get("WANDB_MODE", "offline"),
            "reinit": "create_new",  # a launch has several jobs, each with a run of its own
            "settings": {"silent": True, "console": "off"},  # the terminal is the live view's
        }
    return Guarded(name, _Lazy(lambda: _Run(module, arguments)), report)


class _Lazy:
    """Starts the run with its first figures, so that a failing start is guarded as well."""

    def __init__(self, start: Callable[[], Tracker]) -> None:
        self._start = start
        self._tracker: Tracker | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._tracker is None:
            self._tracker = self._start()
        self._tracker.log(step, metrics)

    def finish(self) -> None:
        if self._tracker is not None:
            self._tracker.finish()
