"""A weighted sum over tokens equals the mean that each scheme is named for."""

import numpy as np
import pytest

from plait.algos.normalisation import token_weights

LENGTHS = (1, 4, 7)
TOKENS = [np.arange(n) + 1.0 for n in LENGTHS]


def weighted_sum(scheme) -> float:
    weights = token_weights(LENGTHS, scheme, max_tokens=10)
    return float(sum(w * t.sum() for w, t in zip(weights, TOKENS, strict=True)))


def test_sequence_mean_is_the_mean_of_means() -> None:
    assert weighted_sum("sequence-mean") == pytest.approx(np.mean([t.mean() for t in TOKENS]))


def test_sequence_sum_is_the_mean_of_sums() -> None:
    assert weighted_sum("sequence-sum") == pytest.approx(np.mean([t.sum() for t in TOKENS]))


def test_token_mean_is_the_mean_of_all() -> None:
    assert weighted_sum("token-mean") == pytest.approx(np.concatenate(TOKENS).mean())


def test_constant_divides_every_sequence_by_the_limit() -> None:
    assert weighted_sum("constant") == pytest.approx(sum(t.sum() for t in TOKENS) / (3 * 10))


def test_a_sequence_beyond_the_limit_is_a_wrong_limit() -> None:
    with pytest.raises(ValueError, match="longer than max_tokens"):
        token_weights((11,), "constant", max_tokens=10)


@pytest.mark.parametrize("scheme", ["sequence-mean", "sequence-sum", "token-mean", "constant"])
def test_no_sequences_no_weights(scheme) -> None:
    assert token_weights((), scheme, max_tokens=10) == ()
