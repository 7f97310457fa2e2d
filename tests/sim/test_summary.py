"""plait.sim.summary and report: figures of an outcome that can be computed by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from plait.cli.console import show
from plait.core.errors import StoreError
from plait.core.substages import Kind
from plait.sim.figures import busy, time_unit
from plait.sim.outcome import JobOutcome, Outcome, Span
from plait.sim.report import case, seconds, to_json, to_text, write
from plait.sim.summary import Alone, alone_of, queueing_s, summarise


def span(device: str, t0: float, t1: float, **over: Any) -> Span:
    values: dict[str, Any] = {
        "device": device, "n_devices": 2, "kind": Kind.DECODE, "job": "a", "t0": t0, "t1": t1,
    }  # fmt: skip
    return Span(**{**values, **over})


def outcome(**over: Any) -> Outcome:
    """Two jobs on four devices for 100 s: one of three steps, one of one."""
    jobs = (
        JobOutcome(
            name="a",
            arrival_s=0.0,
            began_s=10.0,
            step_ends_s=(40.0, 60.0, 100.0),
            tokens=900,
            waits_s={"kv_budget": 10.0, "trainer_busy": 3.0},
        ),
        JobOutcome(name="b", arrival_s=20.0, began_s=20.0, step_ends_s=(50.0,), tokens=100),
    )
    values: dict[str, Any] = {
        "scheme": "plait",
        "jobs": jobs,
        "n_devices": 4,
        "peak_flops": 4e12,
        "spans": (
            span("x/10", 0.0, 50.0),
            span("x/10", 25.0, 75.0, kind=Kind.TRAIN, share=0.5),
            span("x/9", 50.0, 100.0, job="", kind=Kind.MOVE),
        ),
        "busy_device_s": 250.0,
        "flops": 8e13,
        "switch_s": 20.0,
    }
    return Outcome(**{**values, **over})


ALONE = {"a": Alone(tpts_s=20.0, jct_s=60.0), "b": Alone(tpts_s=20.0, jct_s=20.0)}


def test_figures_by_hand() -> None:
    s = summarise(outcome(), alone=ALONE, price=2.0)
    a, b = s.jobs
    assert (a.queue_s, a.ttfs_s, a.tpts_s, a.jct_s) == (10.0, 40.0, 30.0, 100.0)
    assert (b.queue_s, b.ttfs_s, b.tpts_s, b.jct_s) == (0.0, 30.0, 30.0, 30.0)
    assert (a.stretch, b.stretch, s.worst_stretch) == (1.5, 1.5, 1.5)
    assert s.speedup == pytest.approx(80.0 / 100.0)  # 80 s of jobs alone in 100 s
    assert (s.ttfs_mean_s, s.ttfs_median_s, s.tpts_s) == (35.0, 35.0, 30.0)
    assert s.utilisation == pytest.approx(250 / 400)
    assert s.mfu == pytest.approx(8e13 / 4e14)
    assert s.device_hours_per_step == pytest.approx(400 / 3600 / 4)
    assert s.switch_share == pytest.approx(20 / 400)
    assert s.cost == pytest.approx(2.0 * 400 / 3600)


def test_devices_that_jobs_bring_are_paid_for() -> None:
    s = summarise(outcome(brought_device_s=100.0), price=3.6)
    assert s.cost == pytest.approx(0.5)
    assert s.switch_share == pytest.approx(20 / 500)


def test_what_nobody_can_know_is_not_zero() -> None:
    s = summarise(outcome(), alone={"a": ALONE["a"]})
    assert s.jobs[1].stretch is None
    assert (s.speedup, s.worst_stretch, s.cost) == (None, None, None)
    nothing = outcome(
        jobs=(JobOutcome(name="a", arrival_s=0, began_s=0, step_ends_s=(), tokens=0),)
    )
    s = summarise(nothing, alone=ALONE)
    assert (s.ttfs_mean_s, s.tpts_s, s.device_hours_per_step) == (None, None, None)
    assert alone_of(nothing) is None


def test_jobs_one_after_another_come_to_a_speed_up_of_one() -> None:
    jobs = tuple(
        JobOutcome(name=n, arrival_s=0, began_s=t, step_ends_s=(t + 5.0, t + 10.0), tokens=0)
        for n, t in (("a", 0.0), ("b", 10.0))
    )
    alone = {n: Alone(tpts_s=5.0, jct_s=10.0) for n in "ab"}
    assert summarise(outcome(jobs=jobs), alone=alone).speedup == pytest.approx(1.0)


def test_a_device_is_busy_once_however_many_share_it() -> None:
    import numpy as np

    shares = busy(outcome(), np.array([0.0, 25.0, 50.0, 75.0, 100.0]))
    # Of four devices: x/10 has two, whole, whole, half; x/9 has two in the second half.
    assert shares == pytest.approx([0.5, 0.5, 0.75, 0.5])


def test_queueing_delays_are_sorted() -> None:
    assert queueing_s(outcome().jobs) == [0.0, 10.0]


def test_an_evaluation_after_the_last_step_counts_in_the_makespan() -> None:
    job = JobOutcome(name="a", arrival_s=0, began_s=0, step_ends_s=(5.0,), tokens=0, finished_s=8.0)
    assert outcome(jobs=(job,)).makespan_s == 8.0


def test_report_is_a_table_json_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = case(outcome(), setting="jobs=2", alone=ALONE, price=2.0)
    show(to_text([one]))
    said = capsys.readouterr().out
    for word in ("jobs=2", "plait", "0.80×", "1.50", "kv_budget 10.0 s"):
        assert word in said
    found = json.loads(json.dumps(to_json([one])))
    assert found[0]["setting"] == "jobs=2"
    assert found[0]["worst_stretch"] == 1.5
    files = write([one], tmp_path / "out")
    assert [f.name for f in files] == ["report.json", "plait_jobs=2.png"]
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="give another --out"):
        write([case(outcome())], tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "–"), (0.25, "0.25 s"), (90.0, "90.0 s"), (600.0, "10.0 min"), (1e4, "2.8 h"),
     (1e6, "11.6 d")],
)  # fmt: skip
def test_durations_are_readable(value: float | None, said: str) -> None:
    assert seconds(value) == said


def test_time_units() -> None:
    assert [time_unit(t)[0] for t in (100, 300, 20_000, 400_000)] == [
        "seconds", "minutes", "hours", "days",
    ]  # fmt: skip
