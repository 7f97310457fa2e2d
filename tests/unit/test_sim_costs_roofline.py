from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.sim.costs.attained import CPU, FAMILIES, GPU, NAMES, SHARES, attained
from plait.sim.costs.devices import DEVICES, device_of
from plait.sim.costs.models import MODELS
from plait.sim.costs.protocol import Costs
from plait.sim.costs.roofline import costs_of

LLAMA = MODELS["llama-3.1-8b"]
WITHOUT_EMBEDDING = LLAMA.n_params - LLAMA.vocab * LLAMA.hidden


def test_decode_of_few_rows_is_the_reading_of_the_weights() -> None:
    costs = costs_of("llama-3.1-8b", "h100")
    # 15.01 GB at 75 % of 3.35 TB/s, 1 ms and 32 layers of 25 µs
    read_s = WITHOUT_EMBEDDING * 2 / (0.75 * 3.35e12)
    assert costs.decode_s(1, 0) == pytest.approx(read_s + 1.0e-3 + 32 * 25e-6)
    cache_s = 100_000 * 131_072 / (0.75 * 3.35e12)
    assert costs.decode_s(1, 100_000) - costs.decode_s(1, 0) == pytest.approx(cache_s)


def test_decode_of_many_rows_is_compute() -> None:
    costs = costs_of("llama-3.1-8b", "h100")
    flops = 4000 * (LLAMA.body_flops + LLAMA.head_flops) + 8000 * LLAMA.attention_flops
    expected = flops / (0.5 * 989.4e12) + 1.0e-3 + 32 * 25e-6
    assert costs.decode_s(4000, 8000) == pytest.approx(expected)


def test_adapters_are_read_and_have_kernels_of_their_own() -> None:
    costs = costs_of("llama-3.1-8b", "h100", weights="lora")
    more_s = costs.decode_s(8, 0, 4) - costs.decode_s(8, 0)
    assert more_s == pytest.approx(4 * 41_943_040 * 2 / (0.75 * 3.35e12) + 32 * 14e-6)


def test_a_step_reads_the_experts_that_are_hit() -> None:
    moe = MODELS["qwen3-30b-a3b"]
    costs = costs_of("qwen3-30b-a3b", "h200")
    expert_s = moe.expert_params * 48 * 2 / (0.75 * 4.8e12)
    one, two = costs.decode_s(1, 0), costs.decode_s(2, 0)
    # One row hits 8 of 128; a second hits 8 · 120/128 others on average.
    assert two - one == pytest.approx(7.5 * expert_s)
    assert costs.decode_s(10_000, 0) > costs.decode_s(64, 0)


def test_two_all_reduces_a_layer_over_the_slice() -> None:
    one, four = costs_of("llama-3.1-8b", "h100"), costs_of("llama-3.1-8b", "h100", 4)
    fixed_s = 1.0e-3 + 32 * 25e-6
    traffic_s = 64 * 2 * 3 / 4 * 8 * 4096 * 2 / (0.75 * 450e9)
    alone_s = one.decode_s(8, 0) - fixed_s
    expected = fixed_s + alone_s / 4 + 64 * 10e-6 + traffic_s
    assert four.decode_s(8, 0) == pytest.approx(expected)


def test_between_nodes_collectives_are_slower() -> None:
    inside, across = costs_of("qwen3-32b", "a100", 4), costs_of("qwen3-32b", "a100", 8)
    assert across.decode_s(8, 0) > inside.decode_s(8, 0) / 2 + 128 * 20e-6


def test_prefill_by_hand() -> None:
    costs = costs_of("llama-3.1-8b", "h100")
    pairs = 1000 * 1000 / 2 + 1000 * 500
    flops = 1000 * LLAMA.body_flops + LLAMA.head_flops + pairs * LLAMA.attention_flops
    assert costs.prefill_s(1000, 500) == pytest.approx(flops / (0.5 * 989.4e12))
    assert costs.prefill_s(1000, 0, n_samples=10) < costs.prefill_s(1000, 0)
    assert costs.migrate_s(1000) == costs.prefill_s(1000)


def test_training_is_three_forwards_and_two_of_an_adapter() -> None:
    full, lora = costs_of("qwen3-4b", "h100"), costs_of("qwen3-4b", "h100", weights="lora")
    forward_s = full.reference_s(64_000, 64) * 0.45 / 0.40
    optimizer_s = full.n_trained * 28 / (0.75 * 3.35e12)
    assert full.train_s(64_000, 64) == pytest.approx(3 * forward_s + optimizer_s + 0.1)
    adapter_s = 6 * lora.n_trained * 64_000 / (0.40 * 989.4e12)
    small_s = lora.n_trained * 28 / (0.75 * 3.35e12)
    assert lora.train_s(64_000, 64) == pytest.approx(2 * forward_s + adapter_s + small_s + 0.1)


def test_sharded_training_of_few_tokens_waits_for_the_weights() -> None:
    alone, four = costs_of("qwen3-4b", "h100"), costs_of("qwen3-4b", "h100", replicas=4)
    assert four.train_bytes * 4 == pytest.approx(alone.train_bytes)
    gathered_s = 3 * four.weight_bytes * 3 / 4 / (0.75 * 450e9)
    update_s = four.n_trained * 28 / (4 * 0.75 * 3.35e12) + 0.1
    assert four.train_s(10, 1) == pytest.approx(gathered_s + update_s)
    assert four.train_s(50_000, 50) < alone.train_s(50_000, 50)  # its part of the optimizer only


def test_moves_by_hand() -> None:
    full, lora = costs_of("qwen3-4b", "h100"), costs_of("qwen3-4b", "h100", weights="lora")
    assert full.train_bytes == 14 * full.model.n_params
    assert full.offload_s() == pytest.approx(16 * full.model.n_params / (0.75 * 64e9) + 0.1)
    assert full.load_s() == full.offload_s()
    assert full.sync_s() == pytest.approx(2 * full.model.n_params / (0.75 * 450e9) + 0.1)
    assert lora.load_s() == pytest.approx(16 * lora.n_trained / (0.75 * 64e9) + 0.1)
    over_network = costs_of("qwen3-4b", "h100", 8, replicas=2)
    assert over_network.sync_s() == pytest.approx(2 * full.model.n_params / 8 / (0.75 * 50e9) + 0.1)


def test_useful_flops() -> None:
    full, lora = costs_of("qwen3-4b", "h100"), costs_of("qwen3-4b", "h100", weights="lora")
    one = full.flops(1)
    assert one == full.model.body_flops + full.model.head_flops
    assert full.flops(10, 10) == pytest.approx(30 * one)
    assert lora.flops(10, 10) == pytest.approx(20 * one)


def test_this_kind_of_cpu_is_not_faster_than_it_was_measured() -> None:
    costs = costs_of("smollm2-135m", "cpu")
    # benchmarks/results/B3.jsonl, last line: tokens per second at 8, 32 and 64 rows
    for rows, tokens_per_s in ((8, 98.1), (32, 212.4), (64, 230.0)):
        ours = rows / costs.decode_s(rows, rows * 48)
        assert ours == pytest.approx(tokens_per_s, rel=0.05)
        assert ours <= tokens_per_s


def test_a_slice_of_a_device_holds_to_its_sheet() -> None:
    costs: Costs = costs_of("qwen3-0.6b", "h100", 2)
    assert costs.peak_flops == 2 * 989.4e12
    assert costs.memory_bytes == 160_000_000_000
    assert costs.weight_bytes == 2 * 596_049_920
    assert costs.kv_bytes_per_token == 114_688
    for rows in (1, 64, 100_000):
        assert costs.flops(rows) / costs.decode_s(rows, 0) < costs.peak_flops


@pytest.mark.parametrize(
    "device", sorted(DEVICES.values(), key=lambda d: d.name), ids=lambda d: d.name
)
def test_each_device_names_its_source(device: Any) -> None:
    assert len(device.source) > 20
    assert device.family in FAMILIES
    assert device_of(device.name.upper()) is device


def test_other_names_of_the_npu() -> None:
    assert device_of("Ascend-910B") is DEVICES["npu"]


def test_factors_multiply_constants_and_leave_room_for_thirty_percent() -> None:
    assert attained("gpu", {"train_mfu": 0.7}).train_mfu == pytest.approx(0.7 * GPU.train_mfu)
    for family, base in FAMILIES.items():
        for name in NAMES:
            for factor in (0.7, 1.3):
                value = getattr(attained(family, {name: factor}), name)
                assert value == pytest.approx(factor * getattr(base, name))
                assert name not in SHARES or value < 1
    slow = costs_of("smollm2-135m", "cpu", constants={"decode_mfu": 0.5})
    assert slow.decode_s(64, 0) > costs_of("smollm2-135m", "cpu").decode_s(64, 0) * 1.5
    assert slow.constants.train_mfu == CPU.train_mfu


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "h10"}, r"unknown device 'h10': did you mean 'h100'\?"),
        ({"model": "qwen4-4b"}, "unknown model 'qwen4-4b': did you mean"),
        ({"constants": {"prefil_mfu": 1.0}}, "unknown constant 'prefil_mfu': did you mean 'pref"),
        ({"constants": {"prefill_mfu": 0.0}}, "give a positive factor"),
        ({"constants": {"prefill_mfu": float("nan")}}, "give a positive factor"),
        ({"constants": {"memory_share": 1.5}}, r"1\.12 of the data sheet's .* at most 1\.33"),
        ({"n": 0}, "devices: 0 is not possible"),
        ({"replicas": 0}, "replicas: 0 is not possible"),
        ({"rank": 0}, "rank: 0 is not possible"),
        ({"weights": "half"}, "weights: 'half' is not known"),
    ],
)
def test_bad_input_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        costs_of(**{"model": "qwen3-4b", "device": "h100", **given})
