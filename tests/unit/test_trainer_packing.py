from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from test_trainer_ops import ARCH

from plait.engines.torch.train.packing import (
    SHORT,
    Cost,
    forward_cost,
    halves,
    micro_batches,
    train_cost,
)
from plait.engines.torch.train.prefix import Family

COST = Cost(token_bytes=10, place_bytes=3, fixed_bytes=50)
lengths_of = st.lists(st.integers(1, 60), max_size=30)


@given(lengths_of, st.integers(1, 3000), st.integers(1, 200))
def test_every_sequence_once_and_within_both_limits(lengths, budget, max_tokens) -> None:
    batches = micro_batches(lengths, COST, budget, max_tokens)
    assert sorted(i for b in batches for i in b) == list(range(len(lengths)))
    for batch in batches:
        n = sum(lengths[i] for i in batch)
        longest = max(lengths[i] for i in batch)
        if len(batch) > 1:
            assert n <= max_tokens
            assert COST.of(n, len(batch), longest) <= budget


@given(lengths_of)
def test_like_lengths_lie_together_longest_first(lengths) -> None:
    order = [i for b in micro_batches(lengths, COST, 800, 10**6) for i in b]
    assert order == sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def test_padding_counts() -> None:
    # 40 + 8 × 5 tokens cost 800 packed, but nine rows of 40 places cost 1,080 more.
    assert len(micro_batches([40] + [5] * 8, COST, 1800, 10**6)) > 1
    assert len(micro_batches([40] + [5] * 8, Cost(token_bytes=10, place_bytes=0), 1800, 10**6)) == 1


def test_whole_scores_cost_by_the_square_but_only_while_short() -> None:
    cost = Cost(token_bytes=0, place_bytes=0, score_bytes=1)
    assert cost.of(0, 2, 100) == 2 * 100 * 100
    assert cost.of(0, 2, SHORT + 1) == 0


def test_a_sequence_that_never_fits_is_tried_alone() -> None:
    assert micro_batches([100, 1], COST, 60, 10) == [(0,), (1,)]


def test_training_is_held_dearer_than_scoring() -> None:
    deep = replace(ARCH, n_layers=30)
    assert train_cost(deep, 4).of(10, 1, 10) > forward_cost(deep, 4).of(10, 1, 10)


def test_a_family_that_has_room_is_not_cut() -> None:
    free = Cost(token_bytes=0, place_bytes=0)
    lengths = [96] * 16
    families = [Family(members=tuple(range(i, i + 8)), shared=64) for i in (0, 8)]
    # Each is 64 + 8 × 32 = 320 tokens: together too many, and either has room.
    assert micro_batches(lengths, free, 1, 512, families) == [f.members for f in families]
    assert len(micro_batches(lengths, free, 1, 700, families)) == 1
    # One that has room nowhere is cut, and a small beginning is filled up.
    assert [len(b) for b in micro_batches(lengths, free, 1, 256, families)] == [6, 4, 6]
    small = [Family(members=(0, 1), shared=20), Family(members=(2, 3, 4), shared=10)]
    assert micro_batches([30, 30, 25, 25, 25], free, 1, 60, small) == [(0, 1), (2, 3, 4)]
    assert micro_batches([30, 30, 25, 25, 25], free, 1, 70, small) == [(0, 1, 2), (3, 4)]


def test_halves() -> None:
    assert halves((4, 2, 9)) == ((4,), (2, 9))
