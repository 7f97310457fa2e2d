"""Small versions of the simulated figures C3, C4, C5 and C7."""

import json
from math import isfinite

import pytest

from benchmarks.names import FIGURES
from benchmarks.sim import c3_marlaas, c4_plexrl, c5_together, c7_speed, replay


def _numbers(detail):
    if isinstance(detail, dict):
        return [x for value in detail.values() for x in _numbers(value)]
    if isinstance(detail, list | tuple):
        return [x for value in detail for x in _numbers(value)]
    return [detail] if isinstance(detail, float) else []


@pytest.fixture(scope="module")
def marlaas():
    return c3_marlaas.measured(c3_marlaas.SMALL)


def test_sharing_one_base_beats_every_baseline(marlaas):
    assert marlaas.ok
    (row,) = marlaas.detail["ten search runs"].values()
    assert min(row["throughput over"].values()) > 1.0


def test_gains_grow_more_slowly_than_the_number_of_runs(marlaas):
    rows = marlaas.detail["1 to 32 runs"]
    gains = [rows[n]["throughput over one run's"] for n in ("1", "2", "4")]
    assert gains == sorted(gains)
    assert gains[2] / gains[1] < gains[1] / gains[0]
    assert rows["4"]["step stretch"] > 1.0


def test_both_mechanisms_of_the_ablation_matter(marlaas):
    rows = marlaas.detail["ablation, AMC12"]
    assert rows["without asynchrony"]["ours"] < 0.0
    assert rows["without multi-LoRA rollout too, points further"]["ours"] < 0.0


def test_a_pool_of_two_saves_less_than_its_ceiling_by_what_is_told_apart():
    measured = c4_plexrl.measured(c4_plexrl.SMALL)
    assert measured.ok
    row = measured.detail["shared pools"]["7b"]["by jobs on the pool"]["2"]
    left = (1.0 - row["ceiling"]) * row["contention"] * row["switch"]
    assert 1.0 - row["saving"] == pytest.approx(left, rel=1e-3)
    assert row["saving"] <= row["ceiling"]


def test_all_mechanisms_together_are_summed_up_with_the_worst_stretch():
    measured = c5_together.measured(c5_together.SMALL)
    assert set(measured.detail["schemes"]) == {"isolated", *c5_together.PAPERS, c5_together.OURS}
    for row in measured.detail["schemes"].values():
        assert row["worst stretch"] >= row["mean stretch"] > 0.0


def test_speeds_are_told_with_their_margins():
    measured = c7_speed.measured(c7_speed.SMALL)
    assert measured.value == pytest.approx(min(measured.detail["margins"].values()), rel=1e-3)


def test_details_are_finite_and_fit_a_line_of_json(marlaas):
    assert all(map(isfinite, _numbers(marlaas.detail)))
    assert len(json.dumps(marlaas.detail)) < 40_000


def test_all_eight_figures_have_names():
    assert {f"C{i}" for i in range(1, 9)} <= set(FIGURES)
    assert FIGURES["C8"].measure is replay.measure
