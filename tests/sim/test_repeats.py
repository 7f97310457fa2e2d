"""Rollouts that are done again without their rows."""

from dataclasses import replace

import pytest
from sim_support import SimpleCosts, job, setting

from plait.sim.schemes import isolated
from plait.sim.simulate import simulate
from plait.sim.spec import Lengths, Tool

RESPONSE = Lengths(kind="lognormal", median=100, sigma=0.8, most=1000)


def _run(steps, *, mode="fluid", spans=False, draws=0, **job_fields):
    spec = job(
        response=RESPONSE,
        rollout_devices=1,
        train_devices=1,
        weights="full",
        steps=steps,
        **job_fields,
    )
    workload = setting(spec, devices=2, draws=draws)
    return simulate(workload, isolated(), SimpleCosts(), mode=mode, spans=spans)


def test_with_as_many_draws_as_steps_nothing_changes():
    assert _run(4, draws=4) == _run(4)


@pytest.mark.parametrize("tool", [None, Tool(latency_s=1.0, jitter=0.5, blocked=True)])
def test_twice_the_draws_take_twice_the_time(tool):
    turns = (0.5, 0.5) if tool else (1.0,)
    once, twice = (_run(n, draws=3, tool=tool, turns=turns) for n in (3, 6))
    assert twice.makespan_s == pytest.approx(2 * once.makespan_s)
    assert twice.busy_device_s == pytest.approx(2 * once.busy_device_s)
    assert twice.flops == pytest.approx(2 * once.flops)
    assert twice.jobs[0].tokens == 2 * once.jobs[0].tokens
    assert twice.n_events < 2 * once.n_events


def test_what_is_known_from_one_simulation_serves_another():
    known = {}
    spec = job(
        response=RESPONSE,
        rollout_devices=1,
        weights="full",
        steps=3,
        tool=Tool(latency_s=1.0, jitter=0.5, blocked=True),
        turns=(0.5, 0.5),
    )
    workload = setting(spec, devices=2, draws=3)
    first, again = (
        simulate(workload, isolated(), SimpleCosts(), mode="fluid", spans=False, repeats=known)
        for _ in range(2)
    )
    assert replace(again, n_events=0) == replace(first, n_events=0)
    assert again.n_events < first.n_events


@pytest.mark.parametrize("fields", [{"mode": "exact"}, {"spans": True}])
def test_nothing_is_repeated_where_every_step_is_asked_for(fields):
    assert _run(4, draws=2, **fields) == _run(4, **fields)


def test_a_job_that_is_cancelled_while_it_repeats_ends():
    spec = job(response=RESPONSE, rollout_devices=1, weights="full", steps=50)
    workload = setting(spec, devices=2, draws=1, cancel={"a": 3.0})
    outcome = simulate(workload, isolated(), SimpleCosts(), mode="fluid", spans=False)
    assert outcome.jobs[0].ended == "cancelled"
    assert 0 < len(outcome.jobs[0].step_ends_s) < 50
