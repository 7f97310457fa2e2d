"""Shared node groups: tails that move together, updates that are balanced, halves, optimizers."""

from dataclasses import replace

import pytest
from sim_support import SimpleCosts, fixed, job, setting

from plait.core.merging import MergePlan
from plait.core.substages import Kind
from plait.policies import registry
from plait.policies.balancing import EqualFinish
from plait.policies.colocation import LookAhead
from plait.policies.merging import GainMerging
from plait.sim.schemes import Scheme, Serial, Together
from plait.sim.simulate import simulate
from plait.sim.spec import Lengths


def shared(**changes):
    given = {
        "name": "shared",
        "sharing": registry.make(),
        "placement": Together(),
        "full": "multiplexed",
        "colocation": LookAhead(),
    }
    return Scheme(**{**given, **changes})


def full(name="a", **fields):
    given = {
        "weights": "full",
        "groups": 16,
        "samples": 4,
        "train_devices": 2,
        "steps": 2,
        "response": Lengths(kind="lognormal", median=300, sigma=1.0, most=4000),
    }
    return job(name, **{**given, **fields})


class ToFirst:
    """Moves every tail to the first worker."""

    name = "to-first"

    def decide(self, view, state, now):
        return MergePlan(target=view.tails[0].worker, gain_s=1.0, reason="test"), state


def spans(outcome, *kinds):
    return [s for s in outcome.spans if s.kind in kinds]


def decisions(trace, kind):
    return [row for row in trace if row["kind"] == kind]


def test_tails_that_move_end_on_one_worker_and_all_is_drawn():
    workload = setting(full(steps=1))
    apart = simulate(workload, shared(), SimpleCosts(), mode="fluid")
    trace = []
    merged = simulate(workload, shared(merging=ToFirst()), SimpleCosts(), mode="fluid", trace=trace)
    assert decisions(trace, "merging")
    assert merged.jobs[0].tokens == apart.jobs[0].tokens
    ends = {}
    for span in spans(merged, Kind.DECODE, Kind.BATCH):
        ends[span.device] = max(ends.get(span.device, 0.0), span.t1)
    first, last = sorted(ends.values())
    assert first < 0.9 * last


def test_a_view_of_tails_states_what_moving_costs():
    trace = []
    simulate(
        setting(full(steps=1)),
        shared(merging=GainMerging()),
        SimpleCosts(),
        mode="fluid",
        trace=trace,
    )
    view = decisions(trace, "merging")[0]["view"]
    (a, b), (together_s, same_s) = view["tails"], view["merged_s"]
    assert together_s == same_s
    works = [a["substage"]["work_s"], b["substage"]["work_s"]]
    # Together they take longer than either by itself, and less than one after the other.
    assert max(works) < together_s < sum(works)
    for tail, n_bytes in zip((a, b), view["moved_bytes"], strict=True):
        moved_tokens = tail["migrate_s"] * 1e5
        assert moved_tokens > 10 * tail["substage"]["n_samples"]
        # What is still to be drawn needs room too.
        assert n_bytes > 1000 * moved_tokens


def test_alone_nothing_is_gained_by_moving():
    trace = []
    simulate(
        setting(full(steps=1)),
        shared(merging=GainMerging()),
        SimpleCosts(),
        mode="fluid",
        trace=trace,
    )
    assert all(row["plan"]["target"] is None for row in decisions(trace, "merging"))


def test_an_update_gets_less_where_a_neighbour_rolls_out():
    trace = []
    simulate(
        setting(full("a", steps=3), full("b", steps=3, seed=1)),
        shared(balancing=EqualFinish()),
        SimpleCosts(),
        mode="fluid",
        trace=trace,
    )
    found = decisions(trace, "balancing")
    assert found
    for row in found:
        slow, samples = row["view"]["slowdowns"], row["plan"]["samples"]
        assert sum(samples) == 64
        if slow[0] != slow[1]:
            assert (samples[0] < samples[1]) == (slow[0] > slow[1])
    assert any(row["view"]["slowdowns"][0] != row["view"]["slowdowns"][1] for row in found)


@pytest.mark.parametrize(("halves", "b_rolls_on"), [("same", {"g0/0"}), ("swapped", {"g0/1"})])
def test_runs_with_devices_apart_have_them_as_the_scheme_says(halves, b_rolls_on):
    jobs = [full(name, rollout_devices=1, train_devices=1, steps=1) for name in "ab"]
    outcome = simulate(setting(*jobs), shared(colocation=Serial(), halves=halves), SimpleCosts())
    for name, rolls_on in (("a", {"g0/0"}), ("b", b_rolls_on)):
        mine = [s for s in outcome.spans if s.job == name]
        assert {s.device for s in mine if s.kind.rolls_out} == rolls_on
        assert {s.device for s in mine if s.kind is Kind.TRAIN} == {"g0/0", "g0/1"} - rolls_on


def test_optimizers_take_turns_when_two_do_not_fit():
    costs = SimpleCosts(train_bytes=400_000_000, move=0.5)
    both = setting(full("a"), full("b"))
    outcome = simulate(both, shared(colocation=Serial()), costs, mode="fluid")
    assert [j.ended for j in outcome.jobs] == ["done", "done"]
    assert outcome.switch_s > 0.0
    alone = simulate(setting(full("a")), shared(), costs, mode="fluid")
    assert alone.switch_s == 0.0


def test_together_binds_all_that_fit_one_group():
    jobs = [replace(full(name), steps=1) for name in "abc"]
    outcome = simulate(setting(*jobs), shared(colocation=Serial()), SimpleCosts())
    assert all(j.began_s == 0.0 for j in outcome.jobs)


def test_an_optimizer_stays_only_where_everybody_keeps_what_it_needs_at_least():
    """800 MB beside the weights: a cache for the longest sample, or the optimizer and less."""
    costs = SimpleCosts(kv_bytes_per_token=1_000_000, train_bytes=100_000_000, move=0.1)
    spec = full(response=fixed(700), steps=2)
    outcome = simulate(setting(spec), shared(), costs, mode="fluid")
    assert outcome.jobs[0].ended == "done"
    assert outcome.switch_s > 0.0
