"""The simulated figures in small: what they compute, not what they find."""

from itertools import pairwise

import pytest

from benchmarks.sim import c1_shares, c2_multiplexing, c6_bounds, exact, schemes
from benchmarks.sim.bounds import blind, bounds
from benchmarks.sim.exact import Run, Step, optimum_s
from benchmarks.sim.pairs import Pair, apart, run
from benchmarks.sim.sensitivity import Models, effects
from benchmarks.sim.stages import STAGES, percent
from plait.sim.schemes import isolated, lora
from plait.sim.simulate import simulate
from plait.sim.workloads import jigsawrl, marlaas, plexrl

GRID = [(1.0, 1.0), (1.0, 0.5), (2.0, 0.5)]


def test_shares_are_of_the_whole_and_a_second_pass_counts():
    took = {"rollout": 6.0, "reference": 1.0, "training": 2.0, "tool": 1.0}
    assert percent(took) == pytest.approx(
        {"rollout": 60.0, "reference": 10.0, "training": 20.0, "tool": 10.0}
    )
    assert percent(took, passes=2)["reference"] == pytest.approx(200.0 / 11.0)


def test_each_row_is_predicted_without_itself(monkeypatch):
    before = c1_shares.evaluate(GRID, steps=1, sensitivity=False).detail["rows"]
    row = "qwen3-4b/aime/4"
    changed = {**c1_shares.PAPER, row: (10.0, 10.0, 10.0, 70.0)}
    monkeypatch.setattr(c1_shares, "PAPER", changed)
    after = c1_shares.evaluate(GRID, steps=1, sensitivity=False).detail["rows"]
    assert after[row]["ours"] == before[row]["ours"]
    assert set(before) == set(changed)
    for found in before.values():
        assert sum(found["ours"].values()) == pytest.approx(100.0, abs=0.3)
    for stage in STAGES:
        error = before[row]["ours"][stage] - before[row]["paper"][stage]
        assert before[row]["error"][stage] == pytest.approx(error, abs=0.11)


def test_tools_have_a_share_where_there_are_tools():
    shares = {
        row: percent(c1_shares.stage_seconds(row, (1.0, 1.0), 1))
        for row in ("qwen3-4b/gsm8k/4", "qwen3-4b/search/4")
    }
    assert shares["qwen3-4b/gsm8k/4"]["tool"] == pytest.approx(0.0, abs=0.1)
    assert shares["qwen3-4b/search/4"]["tool"] > 10.0


def test_ours_is_ahead_of_one_after_the_other_and_of_rollouts_alone():
    measured = c2_multiplexing.evaluate(steps=2, only=["qwen3-4b/gsm8k"], sensitivity=False)
    row = measured.detail["fig_12"]["qwen3-4b/gsm8k"]
    assert row["verl"] > 1.0
    assert row["muxserve"] > 1.0
    assert all(1.0 < s < 2.0 for s in row["stretch"])
    assert measured.value == row["verl"]
    table = measured.detail["table"]["fig_12 over verl, mean"]
    assert table["error"] == pytest.approx(row["verl"] / table["paper"] - 1.0, abs=1e-3)


def test_stretch_is_a_step_shared_over_one_alone():
    alone, shared = (
        Pair(tokens_per_s=1.0, step_s={"a": 10.0, "b": b}, mfu=0.1, together=True)
        for b in (10.0, 15.0)
    )
    assert shared.stretch(alone) == [1.0, 1.5]


def test_halves_are_halves():
    setting = apart(jigsawrl.pair("qwen3-4b", "gsm8k"))
    assert {(s.rollout_devices, s.train_devices) for s in setting.jobs} == {(2, 2)}


def test_effects_are_sorted_and_of_thirty_percent():
    found = effects(lambda models: 10.0 * models.factors.get("train_mfu", 1.0)
                    + models.factors.get("memory_share", 1.0))  # fmt: skip
    assert list(found) == ["train_mfu", "memory_share"]
    assert found["train_mfu"] == pytest.approx([8.0, 14.0])


def test_constants_of_the_slowdown_model_are_varied():
    found = effects(lambda models: models.slowdown.contention)
    assert found == {"slowdown.contention": pytest.approx([0.231, 0.429])}
    slower = Models(factors={"train_mfu": 0.5})
    setting = jigsawrl.pair("qwen3-0.6b", "gsm8k")
    base, other = (run(setting, schemes.verl(), steps=1, models=m) for m in (Models(), slower))
    assert other.tokens_per_s < base.tokens_per_s


@pytest.mark.parametrize(
    ("setting", "scheme"),
    [
        (jigsawrl.table_1()["qwen3-4b/search/4"], isolated()),
        (jigsawrl.pair("qwen3-4b", "gsm8k"), schemes.ours()),
        (jigsawrl.fig_15("one-step")["qwen3-4b/gsm8k"], schemes.ours()),
        (marlaas.replicas("qwen3-0.6b", "wiki-search", 3), lora()),
        (plexrl.shared_pool("7b", 2), schemes.plexrl()),
    ],
)
def test_nothing_beats_its_bound(setting, scheme):
    setting = c6_bounds.shortened(setting, 2)
    outcome = simulate(setting, scheme, Models().costs_of, mode="fluid", spans=False)
    bound = bounds(setting, scheme)
    assert 0.3 * outcome.makespan_s < bound.lower_s <= outcome.makespan_s
    assert bound.lower_s <= 1.001 * blind(setting, scheme).lower_s


def test_work_binds_where_many_share_and_a_chain_where_one_is_alone():
    one = c6_bounds.shortened(jigsawrl.table_1()["qwen3-4b/gsm8k/4"], 1)
    assert bounds(one, isolated()).binding == "longest chain"
    pair = c6_bounds.shortened(jigsawrl.pair("qwen3-4b", "aime"), 1)
    assert bounds(pair, schemes.ours()).binding == "work on all"


def test_more_steps_raise_the_bound():
    found = [
        bounds(c6_bounds.shortened(jigsawrl.pair("qwen3-4b", "gsm8k"), n), schemes.ours()).lower_s
        for n in (1, 2, 3)
    ]
    assert all(a < b for a, b in pairwise(found))


def test_a_case_far_from_its_bound_has_a_reason():
    case = next(c for c in c6_bounds.cases() if c.name == "fig. 12 qwen3-4b/gsm8k")
    setting = c6_bounds.shortened(case.setting, 1)
    outcome = simulate(setting, case.scheme, Models().costs_of, mode="fluid", spans=False)
    row = c6_bounds.row(outcome, bounds(setting, case.scheme), blind(setting, case.scheme), case)
    assert row["distance"] > c6_bounds.NEAR
    assert row["reason"]


@pytest.mark.skipif(not exact.available(), reason=exact.MISSING)
def test_the_optimum_of_two_job_shops_by_hand():
    steps = (Step(rollout_s=2, update_s=1),) * 2
    # Rollouts of their own: the second update of each round waits for the first.
    assert optimum_s([Run(steps=steps)] * 2) == pytest.approx(7.0)
    both = (Step(rollout_s=2, update_s=2),) * 2
    # One rolls out while the other updates, from the second stage on without a gap.
    assert optimum_s([Run(steps=both, rollout_on="rollout")] * 2) == pytest.approx(10.0)
    # One step ahead, the updates are back to back after the first rollout.
    ahead = (Step(rollout_s=1, update_s=2),) * 3
    assert optimum_s([Run(steps=ahead, ahead=1)]) == pytest.approx(7.0)
