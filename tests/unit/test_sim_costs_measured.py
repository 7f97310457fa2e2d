import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.sim.costs.measured import (
    DecodePoint,
    Measured,
    Profile,
    interpolate,
    read_profile,
    with_profiles,
    write_profile,
)
from plait.sim.costs.protocol import Costs
from plait.sim.costs.roofline import costs_of

PROFILE = Profile(
    model="smollm2-135m",
    device="cpu",
    decode=(
        DecodePoint(rows=8, context=0, seconds=0.08),
        DecodePoint(rows=8, context=1000, seconds=0.10),
        DecodePoint(rows=32, context=0, seconds=0.16),
        DecodePoint(rows=32, context=4000, seconds=0.20),
        DecodePoint(rows=64, context=0, seconds=0.30),
    ),
    adapter_step_s=0.02,
    prefill_tokens_per_s=400.0,
    train_tokens_per_s=100.0,
    train_overhead_s=0.5,
    reference_tokens_per_s=200.0,
    sync_s=0.1,
    offload_s=0.2,
    load_s=0.3,
)
BASE = costs_of("smollm2-135m", "cpu", weights="lora")


@pytest.mark.parametrize(
    ("rows", "context", "adapters", "seconds"),
    [
        (8, 0, 0, 0.08),
        (8, 500, 0, 0.09),
        (8, 2000, 0, 0.12),  # the last slope goes on
        (1, 0, 0, 0.08),  # before the first, the first holds
        (20, 0, 0, 0.12),  # between rows
        (20, 1000, 0, 0.135),  # of 0.10 and 0.17
        (64, 9000, 0, 0.30),  # one point says nothing about context
        (128, 0, 0, 0.58),
        (32, 4000, 2, 0.22),
    ],
)
def test_decode_is_interpolated(rows: int, context: int, adapters: int, seconds: float) -> None:
    costs = Measured(PROFILE, BASE)
    assert costs.decode_s(rows, context, adapters) == pytest.approx(seconds)


def test_the_rest_is_as_measured() -> None:
    costs: Costs = Measured(PROFILE, BASE)
    assert costs.prefill_s(800) == pytest.approx(2.0)
    assert costs.train_s(50, 2) == pytest.approx(1.0)
    assert costs.train_s(0, 0) == 0.0
    assert costs.reference_s(50) == pytest.approx(0.25)
    assert (costs.sync_s(), costs.offload_s(), costs.load_s()) == (0.1, 0.2, 0.3)


def test_what_was_not_measured_comes_from_the_base() -> None:
    costs = Measured(Profile(model="smollm2-135m", device="cpu"), BASE)
    assert costs.decode_s(8, 100, 1) == BASE.decode_s(8, 100, 1)
    assert costs.prefill_s(100, 50, 1, 2) == BASE.prefill_s(100, 50, 1, 2)
    assert costs.train_s(100, 4) == BASE.train_s(100, 4)
    assert costs.reference_s(100, 4) == BASE.reference_s(100, 4)
    assert costs.sync_s() == BASE.sync_s()
    assert costs.offload_s() == BASE.offload_s()
    assert costs.load_s() == BASE.load_s()
    assert costs.flops(3, 2) == BASE.flops(3, 2)
    for name in ("peak_flops", "memory_bytes", "weight_bytes", "train_bytes", "kv_bytes_per_token"):
        assert getattr(costs, name) == getattr(BASE, name)


def test_adapters_that_were_not_measured_cost_what_the_base_says() -> None:
    costs = Measured(replace(PROFILE, adapter_step_s=None), BASE)
    more_s = costs.decode_s(8, 0, 3) - costs.decode_s(8, 0)
    assert more_s == pytest.approx(BASE.decode_s(8, 0, 3) - BASE.decode_s(8, 0))


def test_profiles_replace_the_costs_of_what_was_measured_alone() -> None:
    measured = with_profiles([PROFILE], costs_of)
    assert measured("smollm2-135m", "cpu", weights="lora").load_s() == 0.3
    other = measured("smollm2-135m", "h100", weights="lora")
    assert other == costs_of("smollm2-135m", "h100", weights="lora")


def test_a_falling_slope_does_not_go_on() -> None:
    assert interpolate([(1.0, 3.0), (2.0, 2.0)], 10.0) == 2.0


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_profile(PROFILE, tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json") == PROFILE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "is of version 2, not 1: profile again"),
        ({"decode": [{"rows": 8, "context": 0, "seconds": -0.1}]}, "decode.seconds is -0.1"),
        ({"decode": [{"rows": 0, "context": 0, "seconds": 0.1}]}, "decode.rows is 0"),
        ({"decode": [{"rows": 8}]}, "is no profile"),
        ({"decode": 3}, "is no profile"),
        ({"load_s": -1.0}, "load_s is -1.0"),
        ({"sync_s": "soon"}, "sync_s is 'soon'"),
        ({"train_tokens_per_s": 0.0}, "train_tokens_per_s is 0.0"),
        ({"prefill_tokens_per_s": float("inf")}, "prefill_tokens_per_s is inf"),
        ({"speed": 1.0}, "unexpected keyword argument 'speed'"),
    ],
)
def test_a_wrong_profile_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(json.dumps({"version": 1, **asdict(PROFILE), **change}))
    with pytest.raises(ConfigError, match=message):
        read_profile(file)


@pytest.mark.parametrize(("text", "message"), [("{", "cannot read"), ("[]", "of version None")])
def test_another_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_profile(tmp_path / "p.json")
