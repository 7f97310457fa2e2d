import random

import pytest

from plait.core.ids import RunId
from plait.core.plan import Keep
from plait.engines.torch.blocks import Blocks

A, B = RunId("a"), RunId("b")


def published(blocks: Blocks, policy, tokens) -> list[int]:
    """Blocks as a sample leaves them that has computed ``tokens`` and is over."""
    size = blocks.block_size
    held = blocks.take(policy[0], blocks.blocks_for(len(tokens)))
    chain = blocks.root(policy)
    for i in range(len(tokens) // size):
        chain = blocks.publish(policy, chain, tokens[i * size : (i + 1) * size], held[i])
    blocks.release(held)
    return held


def test_a_known_prefix_is_found_in_whole_blocks_and_never_the_last_token() -> None:
    blocks = Blocks(8, block_size=4)
    tokens = list(range(12))
    held = published(blocks, (A, 1), tokens)
    assert blocks.find((A, 1), tokens)[0] == held[:2]
    assert blocks.find((A, 1), [*tokens, 99])[0] == held[:3]
    assert blocks.find((A, 1), [*tokens[:7], 99, 98])[0] == held[:1]
    assert blocks.find((A, 1), [99, *tokens[1:]])[0] == []


@pytest.mark.parametrize("other", [(A, 2), (A, None), (B, 1)])
def test_another_policy_finds_nothing(other) -> None:
    blocks = Blocks(8, block_size=4)
    published(blocks, (A, 1), list(range(12)))
    assert blocks.find(other, list(range(12)))[0] == []


def test_the_same_tokens_after_another_beginning_are_another_block() -> None:
    blocks = Blocks(8, block_size=2)
    published(blocks, (A, 1), [1, 2, 5, 6])
    assert len(blocks.find((A, 1), [3, 4, 5, 6, 7])[0]) == 0


def test_reuse_can_be_switched_off() -> None:
    blocks = Blocks(8, block_size=4, reuse=False)
    published(blocks, (A, 1), list(range(12)))
    assert blocks.find((A, 1), list(range(12)))[0] == []
    assert blocks.n_available == 8


def test_idle_blocks_are_given_up_least_recently_used_first_and_from_the_end() -> None:
    blocks = Blocks(4, block_size=2)
    old = published(blocks, (A, 1), [1, 2, 3, 4])
    new = published(blocks, (A, 1), [5, 6, 7, 8])
    assert blocks.n_available == 4
    assert blocks.take(B, 1) == [old[1]]
    assert blocks.find((A, 1), [1, 2, 3, 4, 9])[0] == old[:1]
    assert blocks.find((A, 1), [5, 6, 7, 8, 9])[0] == new


def test_forgetting_a_policy_frees_what_nobody_holds() -> None:
    blocks = Blocks(4, block_size=2)
    held = published(blocks, (A, 1), [1, 2, 3, 4])
    blocks.share(held[:1])
    blocks.forget_policy((A, 1))
    assert blocks.find((A, 1), [1, 2, 3, 4, 5])[0] == []
    assert blocks.n_held == 1
    blocks.release(held[:1])
    assert blocks.n_available == 4


def test_shared_blocks_count_once_for_their_run() -> None:
    blocks = Blocks(6, block_size=2)
    held = blocks.take(A, 3)
    blocks.share(held)
    blocks.take(B, 1)
    assert (blocks.by_run[A], blocks.by_run[B], blocks.n_held) == (3, 1, 4)
    blocks.release(held)
    assert blocks.by_run[A] == 3
    blocks.release(held)
    assert blocks.by_run[A] == 0


def test_shrinking_moves_what_is_held_and_keeps_it_findable() -> None:
    blocks = Blocks(8, block_size=2)
    first = published(blocks, (A, 1), [9, 9, 9, 9, 9, 9, 9, 9])
    held = blocks.take(B, 4)
    blocks.share(first[:1])
    moves = blocks.resize(5)
    now = [moves.get(b, b) for b in [*held, first[0]]]
    assert sorted(now) == [0, 1, 2, 3, 4]
    assert blocks.find((A, 1), [9, 9, 1])[0] == now[-1:]
    assert blocks.n_available == 0
    blocks.resize(6)
    assert blocks.n_available == 1
    assert blocks.take(A, 1) == [5]


def lost(blocks: Blocks, n: int) -> list[int]:
    """The blocks that go, in order, when somebody takes ``n``."""
    return [blocks.take(B, 1)[0] for _ in range(n)]


def test_what_is_kept_goes_last_and_what_is_dropped_first() -> None:
    blocks = Blocks(6, block_size=2)
    kept = published(blocks, (A, 1), [1, 2, 3, 4])
    plain = published(blocks, (A, 1), [5, 6, 7, 8])
    dropped = published(blocks, (A, 1), [9, 10, 11, 12])
    blocks.mark((A, 1), [1, 2, 3, 4], Keep.KEEP)
    blocks.mark((A, 1), [9, 10, 11, 12], Keep.DROP)
    blocks.mark((A, 1), [1, 2, 3, 4], Keep.DROP)  # it was kept for somebody
    assert lost(blocks, 6) == [*dropped[::-1], *plain[::-1], *kept[::-1]]
    assert blocks.n_evicted == 6


def test_who_uses_kept_blocks_again_has_had_the_good_of_it() -> None:
    blocks = Blocks(4, block_size=2)
    used = published(blocks, (A, 1), [1, 2, 3, 4])
    blocks.mark((A, 1), [1, 2, 3, 4], Keep.KEEP)
    found, _ = blocks.find((A, 1), [1, 2, 3, 4, 5])
    blocks.share(found)
    blocks.release(found)
    later = published(blocks, (A, 1), [5, 6, 7, 8])
    assert lost(blocks, 4) == [*used[::-1], *later[::-1]]


def test_dropping_spares_what_others_come_back_to() -> None:
    blocks = Blocks(7, block_size=2)
    (older,) = published(blocks, (A, 1), [9, 9])
    mine = published(blocks, (A, 1), [1, 2, 3, 4, 5, 6])
    found, chain = blocks.find((A, 1), [1, 2, 3, 4, 9])
    blocks.share(found)
    (theirs,) = blocks.take(A, 1)
    blocks.publish((A, 1), chain, [7, 8], theirs)
    blocks.release([*found, theirs])
    blocks.mark((A, 1), [1, 2, 3, 4, 5, 6], Keep.DROP)
    blocks.mark((A, 1), [1, 2, 3, 4], Keep.DROP)  # it leads to others
    blocks.mark((B, 1), [1, 2, 3, 4], Keep.DROP)  # nobody knows it
    assert lost(blocks, 7)[2:] == [mine[2], older, theirs, found[1], found[0]]


def test_marks_survive_a_move_and_what_nobody_can_find_goes_at_once() -> None:
    blocks = Blocks(8, block_size=2)
    first = blocks.take(B, 4)
    kept = published(blocks, (A, 1), [1, 2, 3, 4])
    published(blocks, (A, 1), [5, 6, 7, 8])
    blocks.mark((A, 1), [1, 2, 3, 4], Keep.KEEP)
    blocks.release(first)
    moves = blocks.resize(4)
    kept = [moves.get(b, b) for b in kept]
    assert blocks.find((A, 1), [1, 2, 3, 4, 5])[0] == kept
    assert len(blocks.find((A, 1), [5, 6, 7, 8, 9])[0]) == 2
    head, _ = blocks.find((A, 1), [1, 2, 9])
    blocks.share(head)
    blocks.release(head)  # now an ordinary one, ahead of its kept successor
    lost(blocks, 3)
    assert blocks.find((A, 1), [1, 2, 3, 4, 5])[0] == []
    assert blocks.n_idle == 0


@pytest.mark.parametrize("seed", range(20))
def test_books_balance_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    blocks = Blocks(12, block_size=2)
    held: list[tuple[RunId, list[int]]] = []
    for _ in range(300):
        match rng.randrange(6):
            case 0 if blocks.n_available >= 3:
                run = rng.choice([A, B])
                tokens = [rng.randrange(2) for _ in range(6)]
                mine, chain = blocks.find((run, 1), tokens)
                blocks.share(mine)
                if blocks.n_available < 3 - len(mine):
                    blocks.release(mine)
                    continue
                n_found = len(mine)
                mine = mine + blocks.take(run, 3 - n_found)
                for i in range(n_found, 3):
                    chain = blocks.publish((run, 1), chain, tokens[2 * i : 2 * i + 2], mine[i])
                held.append((run, mine))
            case 1 if held:
                blocks.release(held.pop(rng.randrange(len(held)))[1])
            case 2 if held:
                run, mine = rng.choice(held)
                blocks.share(mine)
                held.append((run, list(mine)))
            case 3:
                blocks.forget_policy((rng.choice([A, B]), 1))
            case 4:
                size = rng.randrange(max(1, blocks.n_held), 16)
                moves = blocks.resize(size)
                held = [(run, [moves.get(b, b) for b in mine]) for run, mine in held]
            case 5:
                tokens = [rng.randrange(2) for _ in range(6)]
                blocks.mark((rng.choice([A, B]), 1), tokens, rng.choice(list(Keep)))
        for run in (A, B):
            distinct = {b for r, mine in held if r == run for b in mine}
            assert blocks.by_run[run] == len(distinct)
        everything = {b for _, mine in held for b in mine}
        assert blocks.n_held == len(everything)
        assert blocks.n_held + blocks.n_available == blocks.n_blocks
        assert all(b < blocks.n_blocks for b in everything)
