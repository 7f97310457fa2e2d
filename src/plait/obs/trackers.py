"""Trackers: metrics sent to wandb or trackio as well, if the user asks for it.

A tracker never stops a job: whatever it raises is reported once and the tracker is left out from
then on. Nothing leaves the machine unless the user says so: wandb is offline by default
(``WANDB_MODE``).
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextvars import Context
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from plait.core.errors import ConfigError
from plait.core.text import told

TRACKERS = ("wandb", "trackio")
MAX_WAITING = 1000
"""Rows that may wait for a slow tracker: hours of steps, little memory."""
FINISH_S = 20.0
"""How long the end of a job waits for its tracker's last figures."""


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
        except BaseException as error:  # other people's code, on a thread that nobody else uses
            self._tracker = None
            self._report(f"tracker {self._name} is off: {told(error)}")


def check_tracker(name: str) -> None:
    """ConfigError if the tracker is unknown or its package is missing; nothing is imported."""
    if name not in TRACKERS:
        raise ConfigError(f"unknown tracker {name!r}: use one of {', '.join(TRACKERS)}")
    if find_spec(name) is None:
        raise ConfigError(f"tracker {name} needs its package: pip install 'plait[{name}]'")


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
    check_tracker(name)
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


class Background:
    """A tracker on a thread of its own: however slow it is to start or to log, no job waits for it.

    Figures that it cannot take in time are dropped and reported once; so is its failure to start.
    """

    def __init__(self, start: Callable[[], Tracker], report: Callable[[str], None]) -> None:
        self._start, self._report = start, report
        self._rows: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(MAX_WAITING)
        self._dropped = False
        self._thread = threading.Thread(target=self._serve, name="plait-tracker", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand over figures of one step; returns at once."""
        try:
            self._rows.put_nowait((step, metrics))
        except queue.Full:
            if not self._dropped:
                self._dropped = True
                self._report("a tracker is too slow: figures are being dropped")

    def finish(self) -> None:
        """Wait for what was handed over, within reason, and end the tracker's run."""
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._rows.put(None, timeout=FINISH_S)
            self._thread.join(FINISH_S)

    def _serve(self) -> None:
        try:
            tracker = self._start()
        except BaseException as error:  # other people's code, as in Guarded
            self._dropped = True
            self._report(f"a tracker is off: {told(error)}")
            return
        while (row := self._rows.get()) is not None:
            tracker.log(*row)
        tracker.finish()


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
