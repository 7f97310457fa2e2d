"""Schemes that fix the pipeline or where rollout runs, and the names that ``plait sim`` offers."""

import pytest
from sim_support import SimpleCosts, job, setting

from plait.core.errors import ConfigError
from plait.core.substages import Kind
from plait.policies.baselines import schemes as published
from plait.sim import named
from plait.sim.arranged import STALENESS, arranged
from plait.sim.simulate import simulate

FULL = job(weights="full", train_devices=4, steps=2)


@pytest.mark.parametrize(
    ("name", "roll", "train", "pipeline", "ahead"),
    [
        ("verl-like", 0, 4, "sync", 0),
        ("muxserve-like", 0, 4, "sync", 0),
        ("rollmux-like", 2, 2, "sync", 0),
        ("plexrl", 2, 2, "sync", 0),
        ("split-async", 2, 2, "one-step", 1),
        ("streamrl-like", 2, 2, "one-step", 1),
        ("areal-like", 2, 2, "async", STALENESS),
        ("jigsawrl", 0, 4, "sync", 0),
    ],
)
def test_a_job_runs_as_the_system_does_it(name, roll, train, pipeline, ahead):
    got = arranged(FULL, named.scheme(name))
    assert (got.rollout_devices, got.train_devices) == (roll, train)
    assert (got.pipeline, got.staleness) == (pipeline, ahead)


def test_devices_apart_are_brought_together_and_kept_where_they_are():
    apart = job(weights="full", rollout_devices=1, train_devices=3)
    assert arranged(apart, named.scheme("verl-like")).train_devices == 4
    assert arranged(apart, named.scheme("plexrl")) == apart


def test_runs_of_a_shared_base_are_left_alone():
    assert arranged(job(), named.scheme("marlaas")) == job()


def test_one_device_cannot_be_divided():
    with pytest.raises(ConfigError, match="cannot be divided: raise it"):
        arranged(job(weights="full"), named.scheme("rollmux-like"))


@pytest.mark.parametrize("name", sorted(set(published.SCHEMES) & set(named.known())))
@pytest.mark.parametrize("n_jobs", [1, 3])
def test_every_published_scheme_serves_full_weight_jobs_in_tight_memory(name, n_jobs):
    """Three optimizers do not fit a device at once: who does not fit waits, nothing breaks."""
    jobs = [job(f"j{i}", weights="full", train_devices=4, steps=2) for i in range(n_jobs)]
    costs = SimpleCosts(train_bytes=400_000_000, move=0.01)
    outcome = simulate(setting(*jobs, devices=8), named.scheme(name), costs, mode="fluid")
    assert [done.ended for done in outcome.jobs] == ["done"] * n_jobs
    assert all(len(done.step_ends_s) == 2 for done in outcome.jobs)


def test_a_pool_that_is_shared_needs_jobs_with_rollout_devices():
    from dataclasses import replace

    bare = replace(named.scheme("rollmux-like"), rollout=None)
    with pytest.raises(ConfigError, match="give it rollout_devices"):
        simulate(setting(FULL, devices=8), bare, SimpleCosts())


def test_an_unknown_name_is_answered_with_all_of_them():
    with pytest.raises(ConfigError, match="muxserve-like") as caught:
        named.scheme("mux")
    for name in ("isolated", "greedy", *published.SCHEMES):
        if name not in ("isolated-sequential", "isolated-split"):
            assert name in str(caught.value)


def test_our_published_schemes_merge_and_balance():
    for name in ("jigsawrl", "plait"):
        assert named.scheme(name).merging is not None
        assert named.scheme(name).balancing is not None


def test_training_of_a_shared_base_runs_beside_its_rollout():
    jobs = [job(n, steps=4) for n in "abcd"]
    outcome = simulate(setting(*jobs, devices=2), named.scheme("plait"), SimpleCosts())
    trained = [span for span in outcome.spans if span.kind is Kind.TRAIN]
    assert {span.device for span in trained} == {"g0/m/0", "g0/m/1"}
    beside = [
        span
        for span in outcome.spans
        if span.kind.rolls_out
        and any(t.device == span.device and t.t0 < span.t1 and span.t0 < t.t1 for t in trained)
    ]
    assert beside


def test_node_groups_of_a_shared_base_are_given_back():
    """The full-weight job needs a whole group and there are no others."""
    lora = job("lora", steps=2)
    full = job("full", weights="full", train_devices=2, steps=2)
    options = {"lora_groups": {"m": ["g0"]}}
    outcome = simulate(setting(lora, full, **options), named.scheme("marlaas"), SimpleCosts())
    first, second = outcome.jobs
    assert second.began_s == pytest.approx(first.step_ends_s[-1])
    assert [done.ended for done in outcome.jobs] == ["done", "done"]


def test_a_group_is_given_back_when_all_runs_to_come_are_cancelled():
    lora, late = job("lora", steps=2), job("late", arrival_s=50.0)
    full = job("full", weights="full", train_devices=2, steps=2)
    options = {"lora_groups": {"m": ["g0"]}, "cancel": {"late": 5.0}}
    outcome = simulate(setting(lora, late, full, **options), named.scheme("marlaas"), SimpleCosts())
    assert outcome.jobs[2].began_s == pytest.approx(5.0)
    assert [done.ended for done in outcome.jobs] == ["done", "cancelled", "done"]
