"""Trackers: asked for by name, never able to stop a job."""

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.obs.trackers import Background, Guarded, Tracker, make_tracker

PACKAGE = """
from contextvars import ContextVar

calls = []
current = ContextVar("current", default=None)

class Run:
    def log(self, metrics, step):
        calls.append(("log", step, metrics))

    def finish(self):
        calls.append(("finish",))

def init(**arguments):
    calls.append(("init", arguments))
    if arguments["project"] == "offline-host":
        raise ConnectionError("no route")
    if current.get() is not None:
        current.get().finish()
    run = Run()
    current.set(run)
    return run
"""


@pytest.fixture(params=["wandb", "trackio"])
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of the tracker's name that records what it is asked."""
    (tmp_path / f"{request.param}.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    yield request.param
    sys.modules.pop(request.param, None)


def make(name: str, tmp_path: Path, reports: list[str], project: str = "plait") -> Tracker:
    return make_tracker(
        name,
        project=project,
        run_name="arithmetic",
        config={"lr": 1e-3},
        directory=tmp_path,
        report=reports.append,
    )


def test_metrics_reach_the_tracker(package: str, tmp_path: Path) -> None:
    reports: list[str] = []
    tracker = make(package, tmp_path, reports)
    tracker.log(3, {"reward": 0.5})
    tracker.finish()
    calls = sys.modules[package].calls
    arguments = calls[0][1]
    assert (arguments["project"], arguments["name"]) == ("plait", "arithmetic")
    assert calls[1:] == [("log", 3, {"reward": 0.5}), ("finish",)]
    assert reports == []
    if package == "wandb":
        assert (arguments["mode"], arguments["dir"]) == ("offline", str(tmp_path))


def test_the_jobs_of_a_launch_have_runs_side_by_side(package: str, tmp_path: Path) -> None:
    first, second = make(package, tmp_path, []), make(package, tmp_path, [])
    first.log(1, {})
    second.log(1, {})
    calls = sys.modules[package].calls
    assert [call[0] for call in calls] == ["init", "log", "init", "log"]
    if package == "wandb":
        assert calls[0][1]["reinit"] == "create_new"


def test_wandb_goes_online_only_if_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    make(package, tmp_path, []).log(1, {})
    arguments = sys.modules[package].calls[0][1]
    assert arguments.get("mode") == ("online" if package == "wandb" else None)


def test_a_tracker_that_cannot_start_is_reported_once(package: str, tmp_path: Path) -> None:
    reports: list[str] = []
    tracker = make(package, tmp_path, reports, project="offline-host")
    tracker.log(1, {})
    tracker.log(2, {})
    tracker.finish()
    assert reports == [f"tracker {package} is off: ConnectionError: no route"]


@pytest.mark.parametrize("error", [RuntimeError("quota"), SystemExit("quota")])
def test_a_tracker_that_fails_later_is_left_out(error: BaseException) -> None:
    class Broken:
        asked = 0

        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            self.asked += 1
            raise error

        def finish(self) -> None:
            raise AssertionError("left out after its first failure")

    reports: list[str] = []
    broken = Broken()
    tracker = Guarded("wandb", broken, reports.append)
    tracker.log(1, {})
    tracker.log(2, {})
    tracker.finish()
    assert broken.asked == 1
    assert reports == [f"tracker wandb is off: {type(error).__name__}: quota"]


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'plait\[wandb\]'"):
        make("wandb", tmp_path, [])


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of wandb, trackio"):
        make("tensorbord", tmp_path, [])


class Slow:
    """A tracker that takes its time."""

    def __init__(self) -> None:
        self.gate, self.logged, self.finished = threading.Event(), [], False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.gate.wait(10)
        self.logged.append((step, dict(metrics)))

    def finish(self) -> None:
        self.finished = True


def test_a_slow_tracker_delays_nobody_and_gets_everything() -> None:
    slow, reports = Slow(), []
    tracker = Background(lambda: slow, reports.append)
    for step in range(3):
        tracker.log(step, {"reward": 1.0})
    assert slow.logged == [], "log returned before the tracker had taken anything"
    slow.gate.set()
    tracker.finish()
    assert slow.logged == [(step, {"reward": 1.0}) for step in range(3)]
    assert slow.finished
    assert reports == []


def test_a_tracker_that_cannot_keep_up_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.obs.trackers.MAX_WAITING", 2)
    slow, reports = Slow(), []
    tracker = Background(lambda: slow, reports.append)
    for step in range(9):
        tracker.log(step, {})
    slow.gate.set()
    tracker.finish()
    assert reports == ["a tracker is too slow: figures are being dropped"]


def test_a_tracker_that_does_not_start_is_reported_once() -> None:
    def start() -> Tracker:
        raise ConnectionError("no route")

    reports: list[str] = []
    tracker = Background(start, reports.append)
    tracker.log(1, {})
    tracker.finish()
    assert reports == ["a tracker is off: ConnectionError: no route"]


def test_a_tracker_that_exits_as_it_starts_is_told() -> None:
    def start() -> Tracker:
        raise SystemExit(3)

    reports: list[str] = []
    tracker = Background(start, reports.append)
    tracker.finish()
    tracker.log(1, {})
    tracker.finish()
    assert reports == ["a tracker is off: SystemExit: 3"]
