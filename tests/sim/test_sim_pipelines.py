"""Asynchronous pipelines: how far a run rolls out ahead, and what becomes of a free device."""

import pytest
from sim_support import SimpleCosts, job, setting

from plait.core.substages import Kind
from plait.policies import registry
from plait.policies.colocation import LookAhead
from plait.sim.schemes import Scheme, Together
from plait.sim.simulate import simulate
from plait.sim.spec import Lengths

APART = Scheme(name="apart", sharing=registry.make())
SHARED = Scheme(
    name="shared",
    sharing=registry.make(),
    placement=Together(),
    full="multiplexed",
    colocation=LookAhead(),
)
UNEVEN = Lengths(kind="lognormal", median=60, sigma=1.0, most=600)


def run(scheme, pipeline, k=0, *, slow_training=False, mode="fluid", steps=12):
    spec = job(
        weights="full",
        pipeline=pipeline,
        staleness=k,
        groups=8,
        samples=1,
        response=UNEVEN,
        rollout_devices=2,
        train_devices=2,
        steps=steps,
    )
    costs = SimpleCosts(train_rate=300.0 if slow_training else 1e5)
    return simulate(setting(spec, devices=4), scheme, costs, mode=mode)


@pytest.mark.parametrize("scheme", [APART, SHARED], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_run_is_as_far_ahead_as_it_may_be_and_no_further(scheme, k):
    assert run(scheme, "async", k, slow_training=True).jobs[0].max_lag == k


@pytest.mark.parametrize("scheme", [APART, SHARED], ids=lambda scheme: scheme.name)
def test_a_device_that_is_free_begins_the_next_rollout(scheme):
    """Nobody waits for the longest sample of a step but its own update."""
    ahead, refilled, further = (
        run(scheme, kind, k).makespan_s for kind, k in (("one-step", 1), ("async", 1), ("async", 4))
    )
    assert further < refilled < ahead
    # Rollout is all there is to do, and both devices are kept busy with it.
    rolled_s = {}
    outcome = run(scheme, "async", 4, steps=40)
    for span in outcome.spans:
        if span.kind.rolls_out:
            rolled_s[span.device] = rolled_s.get(span.device, 0.0) + span.t1 - span.t0
    assert min(rolled_s.values()) > 0.9 * outcome.makespan_s


@pytest.mark.parametrize("mode", ["fluid", "exact"])
@pytest.mark.parametrize("scheme", [APART, SHARED], ids=lambda scheme: scheme.name)
def test_steps_are_learned_from_in_order_and_all_is_drawn(scheme, mode):
    sync, refilled = (run(scheme, kind, k, mode=mode) for kind, k in (("sync", 0), ("async", 4)))
    assert refilled.jobs[0].tokens == sync.jobs[0].tokens
    assert len(refilled.jobs[0].step_ends_s) == 12
    trained = [span.t0 for span in refilled.spans if span.kind is Kind.TRAIN]
    assert trained == sorted(trained)
