"""One job's checks, and what it becomes in core types."""

from datetime import date
from typing import Any

import pytest
from pydantic import ValidationError

from plait.core.losses import choose
from plait.core.operations import AdamParams, SamplingParams
from plait.core.runs import ALL_LINEAR, TARGETS, LoraSpec
from plait.jobs.spec import JobSpec


def job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "environment": {"name": "e"}, "steps": 10} | keys)


def test_defaults_become_core_types() -> None:
    spec = job(seed=7)
    assert spec.lora() == LoraSpec(rank=8, alpha=16.0, targets=ALL_LINEAR, seed=7)
    assert spec.adam(1) == AdamParams(
        learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0, grad_clip_norm=1.0
    )


def test_adapter_has_a_seed_of_its_own_where_given() -> None:
    assert job(seed=7, adapter={"seed": 0}).lora().seed == 0


def test_the_head_is_trained_where_it_is_named() -> None:
    assert job(adapter={"targets": TARGETS}).lora().targets == (*ALL_LINEAR, "lm_head")
    with pytest.raises(ValidationError, match="did you mean `lm_head`"):
        job(adapter={"targets": ["lm_haed"]})


def test_sampling_joins_the_jobs_stops_with_the_environments() -> None:
    spec = job(
        limits={"max_tokens": 5},
        sampling={"temperature": 0.5, "top_k": 3, "top_p": 0.9, "stop": ["x"]},
    )
    assert spec.sampling_params(9, stop=(";", "x")) == SamplingParams(
        max_tokens=5, temperature=0.5, top_k=3, top_p=0.9, stop=("x", ";"), seed=9
    )


def test_evaluation_draws_at_its_own_temperature_and_cuts_nothing_off() -> None:
    spec = job(sampling={"top_k": 3, "top_p": 0.5}, evaluation={"temperature": 0.25})
    params = spec.evaluation_params(3)
    assert (params.temperature, params.top_k, params.top_p) == (0.25, 0, 1.0)


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_evaluated_answers_are_as_long_as_those_of_training(ignore_eos: bool) -> None:
    spec = job(sampling={"ignore_eos": ignore_eos, "stop": ["x"]})
    for params in (spec.sampling_params(3), spec.evaluation_params(3)):
        assert (params.ignore_eos, params.stop) == (ignore_eos, ("x",))


def test_rate_follows_warm_up_and_schedule() -> None:
    spec = job(optimizer={"learning_rate": 1.0, "warmup_steps": 2, "schedule": "linear"})
    assert spec.adam(1).learning_rate == pytest.approx(0.5)
    assert spec.adam(2).learning_rate == pytest.approx(1.0)
    assert 0 < spec.adam(10).learning_rate < spec.adam(9).learning_rate


def test_turns_are_capped_by_the_limits() -> None:
    assert job().turns(5) == 5
    assert job(limits={"max_turns": 2}).turns(5) == 2
    assert job(limits={"max_turns": 9}).turns(5) == 5


def test_the_loss_gets_ratio_bounds_only_if_it_clips() -> None:
    assert job().algorithm.loss_config == {
        "kl_coef": 0.0,
        "clip_low_threshold": 0.8,
        "clip_high_threshold": 1.2,
    }
    plain = job(algorithm={"loss": "importance_sampling", "kl_coef": 0.1}).algorithm
    assert plain.loss_config == {"kl_coef": 0.1, "kl_by_ratio": 1.0}
    plain = job(algorithm={"kl_coef": 0.1, "kl_by_ratio": False}).algorithm
    assert plain.loss_config["kl_by_ratio"] == 0.0


@pytest.mark.parametrize(
    "keys",
    [
        {"loss": "ppo"},
        {"loss": "importance_sampling"},
        {"loss": "cispo", "clip_high": 3.0},
        {"loss": "dro", "beta": 0.05},
        {"loss": "gspo", "clip_low": 0.9997, "clip_high": 1.0004},
    ],
)
def test_the_engines_take_what_a_job_gives_each_loss(keys: dict[str, Any]) -> None:
    algorithm = job(algorithm={"kl_coef": 0.1, **keys}).algorithm
    choice = choose(algorithm.loss, algorithm.loss_config)
    assert set(choice.options) == set(algorithm.loss_config), "no default of the engine's own"
    assert choice.options.get("clip_high_threshold") == algorithm.clip_high
    assert choice.options.get("beta") == algorithm.beta


def test_environment_keeps_keys_of_its_own() -> None:
    assert job(environment={"name": "e", "latency_s": 1.5}).environment.config == {"latency_s": 1.5}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"steps": None}, "would never end"),
        ({"algorithm": {"kl_by_ratio": True}}, "needs `kl_coef` above 0"),
        ({"target_window": 3}, "`target_window` would do nothing"),
        (
            {"steps": None, "target_reward": 0.5, "optimizer": {"schedule": "cosine"}},
            "needs `steps`",
        ),
        ({"optimizer": {"warmup_steps": 11}}, "more than `steps`"),
        ({"samples": 1}, "nothing to compare"),
        ({"algorithm": {"loss": "importance_sampling", "clip_low": 0.8}}, "would do nothing"),
        ({"algorithm": {"loss": "dro", "beta": 0.1, "clip_high": 1.2}}, "ppo, cispo, gspo"),
        ({"algorithm": {"loss": "dro"}}, "`loss: dro` needs `beta`"),
        ({"algorithm": {"loss": "dro", "beta": -0.1}}, "greater than or equal to 0"),
        ({"algorithm": {"beta": 0.1}}, "`beta` would do nothing"),
        ({"algorithm": {"loss": "cross_entropy"}}, "'ppo', 'importance_sampling', 'cispo'"),
        ({"rewards": [{}]}, "either `name`"),
        ({"rewards": [{"name": "exact", "function": "m:f"}]}, "either `name`"),
        ({"rewards": [{"function": "m:f", "url": "u"}]}, "`m:f` takes no key `url`"),
        ({"rewards": [{"function": "m.f"}]}, "pattern"),
        ({"rewards": [{"name": "exact", "wieght": 2}]}, "`wieght`: did you mean `weight`"),
        ({"rewards": [{"name": "exact", "zzz": 2}]}, "`exact` takes no key `zzz`"),
        ({"name": "../up"}, "pattern"),
        ({"name": ""}, "pattern"),
        ({"adapter": {"rank": 65}}, "less than or equal to 64"),
        ({"adapter": {"targets": []}}, "at least 1 item"),
        ({"optimizer": {"learning_rate": 0}}, "greater than 0"),
        ({"optimizer": {"learning_rate": float("nan")}}, "finite"),
        ({"optimizer": {"learning_rate": float("inf")}}, "finite"),
        ({"sampling": {"temperature": 0}}, "greater than 0"),
        ({"groups": True}, "valid integer"),
        ({"groups": "4"}, "valid integer"),
        ({"optimizer": {"learning_rate": True}}, "valid number"),
        ({"optimizer": {"learning_rate": "1e-4"}}, "valid number"),
        ({"staleness": -1}, "greater than or equal to 0"),
        ({"steps": 10**400}, "less than or equal to 1000000000"),
        ({"seed": 2**64}, "less than or equal to 18446744073709551615"),
        ({"adapter": {"seed": -(2**63) - 1}}, "greater than or equal to -9223372036854775808"),
        ({"target_reward": 0.5, "target_window": 10**23}, "less than or equal to 10000"),
        ({"groups": 1001, "samples": 1000}, "more than 1000000 samples per step: lower one"),
        ({"evaluation": {"items": 10**6, "samples": 2}}, "more than 1000000 samples: lower one"),
        ({"limits": {"rollout_deadline_s": 1e300}}, "less than or equal to 1000000"),
        ({"rewards": [{"name": "exact", "deadline_s": 1e300}]}, "less than or equal to 1000000"),
        ({"priority": 2**63}, "less than or equal to 1000000"),
        ({"weight": 1e-320}, "greater than or equal to"),
        ({"environment": {"name": "e", "x": b"\xff"}}, "`x` is a bytes: give words"),
        ({"environment": {"name": "e", "x": {"y": [{1, 2}]}}}, "`x` is a set: give words"),
        ({"environment": {"name": "e", "x": {1: 2}}}, "`x` has a key that is no word"),
        ({"environment": {"name": "e", "x": {"\ud800": 2}}}, "`x` holds half a character"),
        ({"environment": {"name": "e", "x": float("nan")}}, "`x` is nan: give a finite number"),
        ({"environment": {"name": "e", "x": -(2**64)}}, "`x` is too large"),
        ({"rewards": [{"name": "judge", "x": date(2024, 1, 2)}]}, "`x` is a date: give words"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        job(**keys)


def test_an_environments_values_are_bounded_in_depth() -> None:
    value: Any = 1
    for _ in range(32):
        value = [value]
    assert job(environment={"name": "e", "x": value}).environment.config == {"x": value}
    with pytest.raises(ValidationError, match="`x` has more than 32 lists and mappings"):
        job(environment={"name": "e", "x": [value]})


def test_a_very_large_rate_is_the_users_to_try() -> None:
    assert job(optimizer={"learning_rate": 1e30}).adam(1).learning_rate == 1e30


def test_one_sample_is_enough_for_a_baseline_over_the_batch() -> None:
    assert job(samples=1, algorithm={"name": "reinforce++"}).samples == 1
