import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.profiles import kv
from plait.profiles.kv import KvObservation, KvProfile, worst_case_blocks


def seen(seconds: float, blocks: float, *, throttled: bool = False) -> KvObservation:
    return KvObservation(
        seconds=seconds, block_s=seconds * blocks, peak_blocks=int(blocks), throttled=throttled
    )


def test_worst_case_counts_a_shared_prompt_once() -> None:
    # 33 prompt tokens: 2 full blocks shared; 1 + 15 own tokens make 1 block per sample.
    args = {"group_size": 8, "prompt_tokens": 33, "max_new_tokens": 15, "block_size": 16}
    assert worst_case_blocks(n_prompts=2, **args) == 2 * (2 + 8 * 1)
    assert worst_case_blocks(n_prompts=2, same_prompt=False, **args) == 2 * 8 * 3


def test_the_last_prompt_token_is_each_samples_own() -> None:
    one = worst_case_blocks(
        n_prompts=1, group_size=4, prompt_tokens=32, max_new_tokens=16, block_size=16
    )
    assert one == 1 + 4 * 2


@given(
    group_size=st.integers(1, 16),
    prompt_tokens=st.integers(1, 200),
    max_new_tokens=st.integers(1, 200),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_worst_case_bounds(group_size, prompt_tokens, max_new_tokens, block_size) -> None:
    args = {
        "n_prompts": 1,
        "group_size": group_size,
        "prompt_tokens": prompt_tokens,
        "max_new_tokens": max_new_tokens,
        "block_size": block_size,
    }
    shared, unshared = worst_case_blocks(**args), worst_case_blocks(same_prompt=False, **args)
    assert shared <= unshared
    assert shared * block_size >= prompt_tokens + max_new_tokens


def test_the_worst_case_stands_in_before_history() -> None:
    assert kv.expected_blocks(KvProfile(), 40) == 40
    assert kv.mean_blocks(KvProfile()) is None


def test_measurements_replace_the_worst_case_and_never_exceed_it() -> None:
    profile = kv.update(KvProfile(), seen(10.0, 7.2))
    assert kv.expected_blocks(profile, 40) == 8
    assert kv.expected_blocks(profile, 5) == 5
    assert kv.expected_blocks(kv.update(KvProfile(), seen(10.0, 0.0)), 40) == 1


def test_the_mean_is_weighted_by_time() -> None:
    profile = kv.update(kv.update(KvProfile(), seen(1.0, 100.0)), seen(99.0, 1.0))
    assert kv.mean_blocks(profile) < 2.0


def test_the_past_fades() -> None:
    profile = kv.update(KvProfile(), seen(10.0, 100.0))
    for _ in range(10):
        profile = kv.update(profile, seen(10.0, 20.0))
    assert kv.mean_blocks(profile) == pytest.approx(20.0, rel=0.05)


def test_a_throttled_rollout_raises_but_never_lowers_the_estimate() -> None:
    """Else an overfull cache would look like small runs, and admission would fill it further."""
    assert kv.update(KvProfile(), seen(10.0, 3.0, throttled=True)) == KvProfile()
    profile = kv.update(KvProfile(), seen(10.0, 20.0))
    assert kv.update(profile, seen(10.0, 3.0, throttled=True)) == profile
    assert kv.mean_blocks(kv.update(profile, seen(10.0, 30.0, throttled=True))) > 20.0


def test_a_rollout_without_duration_changes_nothing() -> None:
    assert kv.update(KvProfile(), seen(0.0, 3.0)) == KvProfile()
