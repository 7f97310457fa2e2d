"""The structure of a Chrome trace, as Perfetto's importer reads it."""

import json
from collections import Counter
from typing import Any

import pytest
from obs_launch import busy_launch, two_job_launch

from plait.obs.trace import JOBS_PID, write_trace


@pytest.fixture(scope="module", params=["two", "busy"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("t") / "l"
    (two_job_launch if request.param == "two" else busy_launch)(root)
    return json.loads(write_trace(root).read_text())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = two_job_launch(tmp_path_factory.mktemp("t") / "l")
    events = json.loads(write_trace(root).read_text())["traceEvents"]
    assert isinstance(events, list)
    return events


def test_every_event_has_what_its_phase_needs(trace: Any) -> None:
    need = {
        "M": {"args"},
        "X": {"dur", "cat"},
        "b": {"id", "cat"},
        "e": {"id", "cat"},
        "i": {"s"},
        "C": {"args"},
    }
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name", "ts"} <= event.keys()
        assert need[event["ph"]] <= event.keys()
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
    stamps = [e["ts"] for e in trace["traceEvents"] if e["ph"] != "M"]
    assert stamps == sorted(stamps)


def test_every_track_is_named(trace: Any) -> None:
    events = trace["traceEvents"]
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {e["pid"] for e in events} == processes
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= threads


def test_slices_of_a_track_do_not_overlap(trace: Any) -> None:
    ends: dict[tuple[int, int], int] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            track = (event["pid"], event["tid"])
            assert event["ts"] >= ends.get(track, 0) - 1
            ends[track] = event["ts"] + event["dur"]


def test_asynchronous_slices_are_paired(trace: Any) -> None:
    begun = Counter((e["cat"], e["id"], e["name"]) for e in trace["traceEvents"] if e["ph"] == "b")
    ended = Counter((e["cat"], e["id"], e["name"]) for e in trace["traceEvents"] if e["ph"] == "e")
    assert begun == ended
    assert begun
    assert set(begun.values()) == {1}


def test_a_batch_shows_on_each_jobs_track_with_its_part(small: list[dict[str, Any]]) -> None:
    slices = [
        e for e in small if e["ph"] == "X" and e["name"] == "rollout" and e["cat"] == "worker"
    ]
    assert [(e["tid"], e["args"]["tokens"]) for e in slices[:2]] == [(1, 300), (2, 100)]
    assert (slices[0]["ts"], slices[0]["dur"]) == (2_000_000, 2_000_000)
    names = {
        e["tid"]: e["args"]["name"]
        for e in small
        if e["name"] == "thread_name" and e["pid"] == slices[0]["pid"]
    }
    assert names == {1: "a", 2: "b"}


def test_stages_tools_steps_and_ends_are_on_the_jobs_tracks(small: list[dict[str, Any]]) -> None:
    mine = [e for e in small if e["pid"] == JOBS_PID]
    stages = [e["name"] for e in mine if e["ph"] == "X" and e["tid"] == 1]
    assert stages[:3] == ["rollout", "train", "idle"]
    (tool,) = [e for e in mine if e["ph"] == "b"]
    assert (tool["name"], tool["ts"], tool["args"]["key"]) == ("tool", 2_500_000, "search")
    assert [e["name"] for e in mine if e["ph"] == "i" and e["cat"] == "step" and e["tid"] == 2] == [
        *("step 1", "step 2", "step 3")
    ]
    (failed,) = [e for e in mine if e["name"] == "failed"]
    assert failed["args"]["reason"].startswith("the loss is not finite")


def test_counters_per_rollout_worker(small: list[dict[str, Any]]) -> None:
    counters = [e for e in small if e["ph"] == "C"]
    assert counters[0]["args"] == {"tokens/s": 200.0}
    assert {e["name"] for e in counters} == {"tokens/s", "cache blocks"}
