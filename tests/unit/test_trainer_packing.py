from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from test_trainer_ops import ARCH

from plait.engines.torch.train.packing import (
    AGAIN,
    LANE_TOKENS,
    SHORT,
    Cost,
    forward_cost,
    halves,
    micro_batches,
    rounds,
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


@given(st.lists(st.integers(1, 200), max_size=40), st.integers(300, 20_000), st.integers(1, 2))
def test_a_round_is_within_the_budget_together(lengths, budget, lanes) -> None:
    planned = rounds(lengths, COST, budget, 600, lanes=lanes)
    assert sorted(i for r in planned for b in r for i in b) == list(range(len(lengths)))
    assert len({len(r) for r in planned}) <= 1
    for r in planned:
        assert len(r) <= lanes
        bytes_of = [COST.of(sum(lengths[i] for i in b), len(b), lengths[b[0]]) for b in r]
        assert sum(bytes_of) <= budget or any(len(b) == 1 for b in r)
    if any(len(r) > 1 for r in planned):
        assert sum(lengths) >= LANE_TOKENS * sum(map(len, planned))


def test_lanes_get_micro_batches_of_like_size() -> None:
    free = Cost(token_bytes=0, place_bytes=0)
    # Eight groups of 34 + 4 × 32 tokens are 162 each: three micro-batches of 512 would be uneven.
    lengths = [66] * 32
    families = [Family(members=tuple(range(i, i + 4)), shared=34) for i in range(0, 32, 4)]
    assert len(micro_batches(lengths, free, 1, 512, families)) == 3
    planned = rounds(lengths, free, 1, 512, families, lanes=2)
    assert [[len(b) for b in r] for r in planned] == [[8, 8], [8, 8]]
    assert len(rounds(lengths, free, 1, 512, families)) == 3


def test_what_is_too_little_for_two_lanes_goes_by_itself() -> None:
    free = Cost(token_bytes=0, place_bytes=0)
    for n, want in ((2 * LANE_TOKENS - 1, [1]), (2 * LANE_TOKENS, [2])):
        assert [len(r) for r in rounds([1] * n, free, 1, 10**6, lanes=2)] == want
    assert rounds([], free, 1, 512, lanes=2) == []


def test_a_beginning_is_not_computed_twice_for_the_sake_of_lanes() -> None:
    free = Cost(token_bytes=0, place_bytes=0)
    for shared, want in ((int(600 * AGAIN), 2), (2 * int(600 * AGAIN), 1)):
        lengths = [shared + 200] * 3
        family = [Family(members=(0, 1, 2), shared=shared)]
        assert [len(r) for r in rounds(lengths, free, 1, 10**6, family, lanes=2)] == [want]


def test_halves() -> None:
    assert halves((4, 2, 9)) == ((4,), (2, 9))
