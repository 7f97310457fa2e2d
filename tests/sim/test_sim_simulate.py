"""The simulated world on cases that can be computed by hand, and what it refuses."""

import itertools
import json

import pytest
from sim_support import SimpleCosts, fixed, job, setting

from plait.core.errors import CapacityError, ConfigError
from plait.core.substages import Kind
from plait.policies import registry
from plait.sim import schemes
from plait.sim.schemes import Scheme
from plait.sim.simulate import simulate
from plait.sim.spec import Lengths, Tool

# By ``Simple``: 4 rows of 100 tokens on contexts from 10 on, after two prompts of 10 tokens.
PREFILL_S = 20 / 1e5
DECODE_S = sum(1e-3 + 4e-6 + 4e-9 * (10 + step) for step in range(100))
TRAIN_S = 4 * 110 / 1e4
STEP_S = PREFILL_S + DECODE_S + TRAIN_S


def full(topology="isolated", **changes):
    return Scheme(name=topology, sharing=registry.make(), full=topology, **changes)


def spans(outcome, kind):
    return [s for s in outcome.spans if s.kind is kind]


def test_a_lora_job_alone_takes_what_its_operations_take():
    outcome = simulate(setting(job(steps=3)), schemes.lora(), SimpleCosts())
    (only,) = outcome.jobs
    assert only.step_ends_s == pytest.approx([STEP_S, 2 * STEP_S, 3 * STEP_S])
    assert only.tokens == 3 * 4 * 110
    assert outcome.makespan_s == pytest.approx(3 * STEP_S)
    assert outcome.utilisation == pytest.approx(0.5)
    decoded, trained = 3 * (4 * 100 + 20), 3 * 4 * 110
    assert outcome.flops == pytest.approx(1e6 * (decoded + 3 * trained))
    assert outcome.mfu == pytest.approx(outcome.flops / (2e12 * outcome.makespan_s))


def test_reward_reference_and_weight_sync_add_up():
    spec = job(steps=1, reward_s=0.5, reference=True)
    outcome = simulate(setting(spec), schemes.lora(), SimpleCosts(sync=0.25))
    assert outcome.makespan_s == pytest.approx(STEP_S + 0.5 + TRAIN_S / 3 + 0.25)


def test_two_lora_runs_decode_together_and_train_in_turn():
    outcome = simulate(setting(job("a", steps=1), job("b", steps=1)), schemes.lora(), SimpleCosts())
    rolled_s = 2 * PREFILL_S + sum(1e-3 + 8e-6 + 8e-9 * (10 + step) for step in range(100))
    ends = sorted(j.step_ends_s[0] for j in outcome.jobs)
    assert ends == pytest.approx([rolled_s + TRAIN_S, rolled_s + 2 * TRAIN_S])
    (rollout,) = spans(outcome, Kind.DECODE)
    assert rollout.job == ""
    waited = [j for j in outcome.jobs if j.waits_s]
    assert [j.waits_s for j in waited] == [{"trainer_busy": pytest.approx(TRAIN_S)}]


def test_a_single_device_rolls_out_and_trains_side_by_side():
    """Two runs on one device take longer than on two, and less than one after the other."""
    jobs = (job("a"), job("b"))
    one = simulate(setting(*jobs, devices=1), schemes.lora(), SimpleCosts())
    two = simulate(setting(*jobs, devices=2), schemes.lora(), SimpleCosts())
    assert two.makespan_s < one.makespan_s < 2 * 3 * STEP_S
    shares = {s.share for s in one.spans}
    assert shares == {0.5, 1.0}


def test_collocated_rollout_waits_while_the_devices_train():
    jobs = (job("a"), job("b", arrival_s=0.05))
    outcome = simulate(
        setting(*jobs, devices=2), schemes.lora(topology="collocated"), SimpleCosts()
    )
    for train in spans(outcome, Kind.TRAIN):
        for rollout in spans(outcome, Kind.DECODE):
            apart = rollout.t1 <= train.t0 + 1e-9 or rollout.t0 >= train.t1 - 1e-9
            assert rollout.device != train.device or apart


@pytest.mark.parametrize("policy", ["plait", "multi-lora-sync", "sequential", "no-multi-lora"])
def test_a_trace_of_decisions_replays_exactly(policy):
    """The live policies: the same state in, the same plan out, and all of it is JSON."""
    trace: list = []
    jobs = [job(f"j{i}", arrival_s=0.03 * i) for i in range(4)]
    simulate(setting(*jobs), schemes.lora(policy), SimpleCosts(), trace=trace)
    assert {row["kind"] for row in trace} == {"admission", "dispatch"}
    assert json.loads(json.dumps(trace)) == trace
    again: list = []
    simulate(setting(*jobs), schemes.lora(policy), SimpleCosts(), trace=again)
    assert again == trace


def test_without_multi_lora_nobody_shares_a_batch():
    jobs = [job(f"j{i}") for i in range(3)]
    outcome = simulate(setting(*jobs), schemes.lora("no-multi-lora"), SimpleCosts())
    assert all(span.job for span in spans(outcome, Kind.DECODE))


def test_a_full_weight_job_with_rollout_devices_overlaps_one_step_ahead():
    spec = job(weights="full", rollout_devices=1, train_devices=1, steps=4)
    sync = simulate(setting(spec), full(), SimpleCosts())
    ahead = simulate(
        setting(job(**{**_fields(spec), "pipeline": "one-step"})), full(), SimpleCosts()
    )
    assert sync.makespan_s == pytest.approx(4 * STEP_S)
    # Training hides behind the next rollout, but for the last.
    assert ahead.makespan_s == pytest.approx(4 * (STEP_S - TRAIN_S) + TRAIN_S)
    assert ahead.jobs[0].max_lag == 1
    assert sync.jobs[0].max_lag == 0


def _fields(spec):
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def test_a_job_that_alternates_offloads_where_the_cache_needs_the_memory():
    """850 MB are free beside the weights: optimizer and a cache for everything do not fit."""
    spec = job(weights="full", train_devices=1, steps=2)
    roomy = simulate(setting(spec, devices=1), full(), SimpleCosts(move=0.1))
    tight = simulate(
        setting(spec, devices=1), full(), SimpleCosts(move=0.1, train_bytes=799_900_000)
    )
    assert roomy.switch_s == pytest.approx(0.1)
    assert tight.switch_s == pytest.approx(2 * 2 * 0.1)


def test_a_shared_pool_does_one_update_at_a_time_and_switches_where_states_do_not_fit():
    jobs = [job(n, weights="full", rollout_devices=1, train_devices=1, steps=3) for n in ("a", "b")]
    costs = SimpleCosts(train_bytes=500_000_000, move=0.01)
    outcome = simulate(setting(*jobs, devices=3), full("shared-train"), costs)
    trained = sorted((s.t0, s.t1) for s in outcome.spans if s.kind in (Kind.TRAIN, Kind.MOVE))
    assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(trained))
    # Six updates, in turn: each brings its state and takes the other's off, but for the first and
    # for the last, when the other job has ended.
    assert [s.job for s in spans(outcome, Kind.TRAIN)] == ["a", "b"] * 3
    assert outcome.switch_s == pytest.approx(0.01 * (6 + 4))
    assert len({s.device for s in outcome.spans}) == 3


def test_jobs_wait_for_devices_and_say_so():
    jobs = [job(n, weights="full", rollout_devices=1, train_devices=1, steps=2) for n in "abc"]
    outcome = simulate(setting(*jobs, devices=4), full(), SimpleCosts())
    third = outcome.jobs[2]
    assert third.began_s == pytest.approx(2 * STEP_S)
    assert third.waits_s == {"devices": pytest.approx(2 * STEP_S)}


def test_rollout_devices_come_from_groups_of_that_name():
    from plait.sim.spec import Cluster, DeviceGroup, Setting

    groups = tuple(
        DeviceGroup(name=name, device="unit", n_devices=1)
        for name in ("train", "rollout-0", "rollout-1")
    )
    jobs = tuple(
        job(n, weights="full", rollout_devices=1, train_devices=1, steps=2) for n in ("a", "b")
    )
    outcome = simulate(
        Setting(cluster=Cluster(groups=groups), jobs=jobs), full("shared-train"), SimpleCosts()
    )
    assert {s.device for s in spans(outcome, Kind.TRAIN)} == {"train/0"}
    assert {s.device for s in spans(outcome, Kind.DECODE)} == {"rollout-0/0", "rollout-1/0"}


def test_pools_that_jobs_bring_along_are_counted_apart():
    spec = job(weights="full", rollout_devices=3, train_devices=1, groups=3, steps=2)
    outcome = simulate(
        setting(spec, devices=1, rollout_from="brought"), full("shared-train"), SimpleCosts()
    )
    assert outcome.n_devices == 1
    assert outcome.brought_device_s == pytest.approx(3 * outcome.makespan_s)
    assert outcome.utilisation <= 1.0


def test_multiplexed_runs_take_turns_on_each_slice_when_they_are_served_serially():
    jobs = [job(n, weights="full", train_devices=2, steps=2) for n in ("a", "b")]
    outcome = simulate(setting(*jobs, devices=2), full("multiplexed"), SimpleCosts())
    for device in ("g0/0", "g0/1"):
        mine = sorted((s.t0, s.t1) for s in outcome.spans if s.device == device)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(mine))
    assert {s.job for s in outcome.spans} == {"a", "b"}


def test_tools_are_waited_for_one_by_one_in_slots_or_blocked():
    def makespan(tool):
        spec = job(turns=(0.0, 1.0), tool=tool, steps=1, response=fixed(50))
        return simulate(setting(spec), schemes.lora(), SimpleCosts()).makespan_s

    free = makespan(Tool(latency_s=1.0))
    assert makespan(Tool(latency_s=1.0, slots=1)) == pytest.approx(free + 3.0, abs=0.1)
    assert makespan(Tool(latency_s=1.0, blocked=True)) == pytest.approx(free, abs=0.1)
    assert makespan(Tool(latency_s=2.0)) == pytest.approx(free + 1.0, abs=0.1)


def test_a_small_cache_queues_samples_and_preempts_the_latest():
    spec = job(groups=8, samples=4, response=Lengths(kind="uniform", least=200, most=400), steps=2)
    ample = simulate(setting(spec), schemes.lora(), SimpleCosts())
    small = simulate(setting(spec, kv_tokens=1500), schemes.lora(), SimpleCosts())
    assert small.makespan_s > 1.5 * ample.makespan_s
    assert small.jobs[0].tokens == ample.jobs[0].tokens


def test_a_lost_slice_comes_back_empty_and_nothing_is_lost():
    spec = job(steps=3)
    before = simulate(setting(spec), schemes.lora(), SimpleCosts())
    for slice_name in ("g0/m/0", "g0/m/train0"):
        outcome = simulate(
            setting(spec, lost={slice_name: 0.12}, recover_s=5.0), schemes.lora(), SimpleCosts()
        )
        assert outcome.jobs[0].tokens == before.jobs[0].tokens
        assert 4.9 < outcome.makespan_s - before.makespan_s < 5.0 + STEP_S


def test_a_cancelled_job_ends_and_frees_its_devices():
    jobs = [job(n, weights="full", rollout_devices=1, train_devices=1, steps=5) for n in "ab"]
    outcome = simulate(setting(*jobs, cancel={"a": 0.2}), full(), SimpleCosts())
    assert outcome.jobs[0].ended == "cancelled"
    assert outcome.jobs[1].began_s == pytest.approx(0.2)
    assert len(outcome.jobs[1].step_ends_s) == 5
    for policy in ("plait", "sequential"):
        loras = [job(n, steps=5) for n in "ab"]
        outcome = simulate(setting(*loras, cancel={"a": 0.2}), schemes.lora(policy), SimpleCosts())
        assert [j.ended for j in outcome.jobs] == ["cancelled", "done"]


def test_a_simulation_can_stop_before_its_jobs():
    outcome = simulate(setting(job(steps=50), until_s=0.5), schemes.lora(), SimpleCosts())
    assert outcome.jobs[0].ended == "unfinished"
    assert 2 <= len(outcome.jobs[0].step_ends_s) <= 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reward_s": -1.0}, "reward_s"),
        ({"arrival_s": float("nan")}, "arrival_s"),
        ({"steps": 0}, "steps"),
        ({"turns": ()}, "turns"),
        ({"tool": Tool(latency_s=-1.0)}, "latency_s"),
        ({"weights": "full", "train_devices": 9}, "lower train_devices"),
        ({"response": fixed(10_000_000)}, "never fits the cache"),
        ({"response": Lengths(kind="lognormal", sigma=0.5)}, "median"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(changes, says):
    changes = {"response": fixed(100), **changes}
    if changes["response"].median > 8192:
        changes["response"] = Lengths(kind="fixed", median=10_000_000, most=10_000_000)
    with pytest.raises(ConfigError, match=says):
        simulate(setting(job(**changes)), schemes.lora(), SimpleCosts())


def test_models_states_and_devices_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="raise tensor_parallel"):
        simulate(setting(job()), schemes.lora(), SimpleCosts(weight_bytes=2_000_000_000))
    with pytest.raises(ConfigError, match="raise train_devices"):
        simulate(
            setting(job(weights="full", rollout_devices=1)),
            full(),
            SimpleCosts(train_bytes=2_000_000_000),
        )
    wrong = setting(job())
    object.__setattr__(wrong.cluster.groups[0], "device", "abacus")
    with pytest.raises(ConfigError, match="unknown device"):
        simulate(wrong, schemes.lora(), SimpleCosts())
    with pytest.raises(ConfigError, match="same name"):
        simulate(setting(job(), job()), schemes.lora(), SimpleCosts())
    with pytest.raises(ConfigError, match="no job"):
        simulate(setting(job(), cancel={"x": 1.0}), schemes.lora(), SimpleCosts())


def test_a_scheme_that_never_serves_a_job_is_named():
    class Nobody:
        name = "nobody"

        def decide(self, view, state, now):
            from plait.core.placement import PlacementPlan

            return PlacementPlan(), state

    with pytest.raises(CapacityError, match="waiting for ever"):
        simulate(
            setting(job(weights="full", rollout_devices=1)),
            full(placement=Nobody()),
            SimpleCosts(),
        )
