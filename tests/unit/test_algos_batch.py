"""Batches: what is left out, and that leaving it out does not change the update."""

import pytest

from plait.algos.batch import ALGORITHMS, Scored, build_batch
from plait.algos.datums import Segment, Trajectory


def scored(reward: float | None, n_tokens: int = 2) -> Scored:
    drawn = Segment(tokens=tuple(range(n_tokens)), logprobs=(-0.5,) * n_tokens)
    return Scored(trajectory=Trajectory(prompt=(1,), segments=(drawn,)), reward=reward)


def weight(batch, i: int = 0) -> float:
    return max(batch.data[i].inputs["weights"])


GROUPS = [[scored(1.0), scored(0.0)], [scored(1.0), scored(1.0)], [scored(None), scored(None)]]


def test_failed_samples_and_groups_without_signal_cost_no_training() -> None:
    batch = build_batch(GROUPS, algorithm="grpo", max_tokens=4)
    assert batch.members == ((0, 0), (0, 1))
    assert batch.signal.zero_signal == (1,)
    assert batch.signal.unscored == (2,)
    assert batch.n_errors == 2
    assert batch.n_tokens == sum(len(d.input_tokens) for d in batch.data)


def test_skipped_groups_keep_their_place_in_the_divisor_and_failed_samples_have_none() -> None:
    batch = build_batch(GROUPS, algorithm="grpo", max_tokens=4)
    assert weight(batch) == pytest.approx(1 / (4 * 2))  # four scored samples of two tokens


def test_with_a_kl_term_groups_without_signal_are_trained_on() -> None:
    batch = build_batch(GROUPS, algorithm="grpo", max_tokens=4, kl_coef=0.1)
    assert batch.members == ((0, 0), (0, 1), (1, 0), (1, 1))


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_signal_at_all_is_an_empty_batch(algorithm: str, kl_coef: float) -> None:
    groups = [[scored(1.0), scored(1.0)], [scored(None), scored(1.0)]]
    batch = build_batch(groups, algorithm=algorithm, max_tokens=4, kl_coef=kl_coef)
    assert batch.data == ()
    assert batch.signal.none


@pytest.mark.parametrize(
    ("algorithm", "long", "short"),
    [
        ("grpo", 1 / (2 * 3), 1 / 2),
        ("dr-grpo", 1 / (2 * 8), 1 / (2 * 8)),
        ("rloo", 1 / 2, 1 / 2),
        ("reinforce++", 1 / 4, 1 / 4),
    ],
)
def test_each_algorithm_comes_with_its_own_mean(algorithm: str, long: float, short: float) -> None:
    groups = [[scored(1.0, n_tokens=3), scored(0.0, n_tokens=1)]]
    batch = build_batch(groups, algorithm=algorithm, max_tokens=8)
    assert [weight(batch, i) for i in (0, 1)] == pytest.approx([long, short])


def test_a_sample_that_drew_nothing_is_not_trained_on() -> None:
    silent = Scored(trajectory=Trajectory(prompt=(1,), segments=()), reward=0.0)
    batch = build_batch([[scored(1.0), silent]], algorithm="grpo", max_tokens=4)
    assert batch.members == ((0, 0),)
    assert batch.advantages_PG[0][1] is not None
