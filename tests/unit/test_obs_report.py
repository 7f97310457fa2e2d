"""The report of a launch: table, JSON, picture."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from obs_launch import busy_launch, info, two_job_launch
from rich.console import Console

from plait.core.errors import ConfigError, StoreError
from plait.obs.jsonl import dumps
from plait.obs.launch import read_launch
from plait.obs.palette import PALETTE, job_colours
from plait.obs.recorder import Recorder
from plait.obs.report import _lost, _reward, make_report, to_json, to_text
from plait.obs.timeline import occupancy, spread

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def launch_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_job_launch(tmp_path_factory.mktemp("r") / "shared")


def text(launch_dir: Path, **options: object) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(to_text(make_report(launch_dir, **options)))  # type: ignore[arg-type]
    return capture.get()


def test_the_table_tells_the_figures(launch_dir: Path) -> None:
    shown = text(launch_dir, alone={"a": 3.2, "b": 2.5})
    assert (
        "1.43× the steps per hour (medians) of one job after another (worst stretch 1.60)" in shown
    )
    (a,) = [line for line in shown.splitlines() if line.startswith("a ")]
    for figure in ("finished", "4.0 s", "1.25", "900", "0.250 → 0.750", "held-out"):
        assert figure in a
    (b,) = [line for line in shown.splitlines() if line.startswith("b  ")]
    assert "trainer_busy 3.0 s" in b
    assert "b failed: the loss is not finite: lower the learning rate" in shown


def test_what_was_not_learned_from_is_told(launch_dir: Path) -> None:
    assert "b: 3 reward errors, 3 of 6 groups skipped, 3 updates in 3 steps" in text(launch_dir)
    job = make_report(launch_dir).stats.jobs[0]
    lost = replace(job, reward_errors=0, groups=1, groups_skipped=1, updates=1, steps=1)
    assert _lost(lost) == "1 of 1 group skipped, 1 update in 1 step"
    assert _lost(replace(lost, reward_errors=1, groups_skipped=0)).startswith("1 reward error, ")
    assert _lost(replace(lost, groups_skipped=0)) == "", "all was learned from"


def test_a_reward_without_a_first_one_is_told_alone(launch_dir: Path) -> None:
    job = make_report(launch_dir).stats.jobs[0]
    assert _reward(replace(job, reward_first=None)) == "0.750 (held-out)"
    assert _reward(replace(job, reward_first=None, reward_last=None)) == "–"


def test_without_a_comparison_there_is_no_stretch(launch_dir: Path) -> None:
    assert "stretch" not in text(launch_dir)


def test_stretch_against_another_launch(launch_dir: Path, tmp_path: Path) -> None:
    alone = two_job_launch(tmp_path / "alone", tpts_s=2.0)
    report = make_report(launch_dir, alone=alone)
    assert [job.stretch for job in report.stats.jobs] == [2.0, 2.0]
    assert report.stats.aggregate_speedup == 1.0


def test_a_launch_of_other_jobs_is_no_comparison(launch_dir: Path, tmp_path: Path) -> None:
    other = busy_launch(tmp_path / "other", n_jobs=2, n_steps=2)
    with pytest.raises(ConfigError, match="no finished step of a job"):
        make_report(launch_dir, alone=other)


def test_json_is_json(launch_dir: Path) -> None:
    value = json.loads(dumps(to_json(make_report(launch_dir, alone={"a": 4.0}))))
    assert value["jobs"][0]["ttfs_s"] == 4.0
    assert value["jobs"][0]["reward_last"]["mean"] == 0.75
    assert value["workers"][0]["busy_share"] == pytest.approx(6 / 14)


@pytest.mark.parametrize("n_jobs", [1, 5])
def test_the_picture_is_drawn_for_few_and_many_jobs(tmp_path: Path, n_jobs: int) -> None:
    root = busy_launch(tmp_path / "l", n_jobs=n_jobs, n_steps=12)
    report = make_report(root, picture=tmp_path / "report.png")
    assert report.picture == tmp_path / "report.png"
    data = report.picture.read_bytes()
    assert data.startswith(PNG)
    assert len(data) > 50_000


def test_a_launch_that_has_done_nothing_yet_has_a_report(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "l", origin_s=0.0)
    recorder.launch(info())
    recorder.added("a", "r", now=0.0)  # type: ignore[arg-type]
    recorder.close()
    report = make_report(tmp_path / "l", picture=tmp_path / "p.png")
    assert (report.stats.jobs[0].steps, report.stats.jobs[0].ttfs_s) == (0, None)
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)
    assert "–" in text(tmp_path / "l")


def test_a_picture_that_cannot_be_written(launch_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="another path"):
        make_report(launch_dir, picture=tmp_path / "none" / "p.png")


def test_occupancy_is_shared_by_tokens_and_idle_is_empty(launch_dir: Path) -> None:
    launch = read_launch(launch_dir)
    edges_s = np.array([0.0, 2.0, 3.0, 5.0, 14.0])
    parts = occupancy(launch, "rollout", edges_s)
    np.testing.assert_allclose(parts["a"], [0, 0.75, 0.375, 0.75 * 4 / 9])
    np.testing.assert_allclose(parts["a"], 3 * parts["b"])


def test_spread_conserves_time() -> None:
    edges_s = np.linspace(0, 10, 8)
    bins = np.zeros(7)
    for t0, t1 in ((0.0, 0.1), (0.3, 9.7), (9.9, 10.0), (4.0, 4.0)):
        spread(bins, t0, t1, 1.0, edges_s)
    assert float((bins * np.diff(edges_s)).sum()) == pytest.approx(0.1 + 9.4 + 0.1)


def test_colours_are_a_jobs_own() -> None:
    colours = job_colours([f"job-{n}" for n in range(9)])
    assert len(set(list(colours.values())[:8])) == 8
    assert colours["job-8"] == PALETTE[0]
