import numpy as np
import pytest
import torch

from plait.core.operations import SamplingParams
from plait.engines.torch import sampling
from plait.engines.torch.noise import draw_keys
from plait.engines.torch.sampling import Rows, draw


def params(**options) -> SamplingParams:
    return SamplingParams(max_tokens=1, **options)


def keys(n: int, seed: int = 0) -> np.ndarray:
    """Names of ``n`` draws."""
    return draw_keys([seed] * n, range(n))


def many(logits_V: torch.Tensor, n: int = 8_000, **options) -> np.ndarray:
    """Shares of the tokens in ``n`` draws."""
    drawn = draw(logits_V.repeat(n, 1), [params(**options)] * n, keys(n))
    return np.bincount(drawn.tokens_R, minlength=len(logits_V)) / n


@pytest.mark.parametrize("n_vocab", [5, 256, 700, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_shares_are_the_softmax(n_vocab: int, temperature: float) -> None:
    logits = torch.randn(n_vocab, generator=torch.Generator().manual_seed(n_vocab)) * 2
    want = (logits.double() / temperature).softmax(-1).numpy()
    got = many(logits, temperature=temperature)
    assert (np.abs(got - want) <= 5 * np.sqrt(want / 8_000) + 5 / 8_000).all()
    often = want > 5 / 8_000
    squares = ((got - want) ** 2 / want)[often].sum() * 8_000  # chi square, one for each on average
    assert squares < often.sum() + 5 * np.sqrt(2 * often.sum())


@pytest.mark.parametrize("n_vocab", [5, 256, 700])
def test_several_draws_of_a_row_are_shared_out_as_its_softmax(n_vocab: int) -> None:
    n, temperatures = 6_000, [1.0, 0.5, 2.0, 0.0]
    logits = torch.randn(4, n_vocab, generator=torch.Generator().manual_seed(n_vocab)) * 2
    want_RV = logits.double().log_softmax(-1)
    rows = Rows(logits.clone(), temperatures)
    of = [row for row in range(4) for _ in range(n)]
    tokens = np.array(rows.drawn(of, keys(4 * n))).reshape(4, n)
    for row, temperature in enumerate(temperatures[:3]):
        want = (logits[row].double() / temperature).softmax(-1).numpy()
        got = np.bincount(tokens[row], minlength=n_vocab) / n
        assert (np.abs(got - want) <= 5 * np.sqrt(want / n) + 5 / n).all()
    assert set(tokens[3]) == {int(logits[3].argmax())}
    told = rows.logprobs([2, 0, 2], [1, 4, 0])
    assert told == pytest.approx([float(want_RV[r, t]) for r, t in ((2, 1), (0, 4), (2, 0))])


def test_a_draw_of_a_row_is_the_one_that_the_row_alone_makes() -> None:
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(4))
    warmth = [0.7, 1.0, 1.3]
    of = [0, 0, 1, 2, 2, 2]
    found = Rows(logits.clone(), warmth).drawn(of, keys(6))
    alone = [
        draw(logits[r : r + 1].clone(), [params(temperature=warmth[r])], keys(6)[i : i + 1])
        for i, r in enumerate(of)
    ]
    assert found == [one.tokens_R[0] for one in alone]


def test_logprob_is_of_the_full_distribution_at_temperature_one() -> None:
    logits = torch.randn(6, 400, generator=torch.Generator().manual_seed(0))
    mixed = [
        params(),
        params(temperature=0.3),
        params(temperature=0.0),
        params(top_k=3),
        params(top_p=0.5),
        params(top_k=20, top_p=0.9, temperature=1.7),
    ]
    drawn = draw(logits, mixed, keys(6))
    want = logits.double().log_softmax(-1)[torch.arange(6), torch.tensor(drawn.tokens_R)]
    assert drawn.logprobs_R == pytest.approx(want.tolist(), abs=1e-6)
    assert drawn.tokens_R[2] == int(logits[2].argmax())


def test_a_row_is_drawn_alike_alone_and_among_others() -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))
    mixed = [params(), params(top_p=0.8), params(temperature=0.0), params(top_k=7), params()]
    names = keys(5)
    together = draw(logits, mixed, names).tokens_R
    alone = [draw(logits[i : i + 1], [mixed[i]], names[i : i + 1]).tokens_R[0] for i in range(5)]
    assert together == alone


@pytest.mark.parametrize("candidates", [8, 1024])
def test_top_k_and_top_p_leave_the_right_tokens(monkeypatch, candidates: int) -> None:
    monkeypatch.setattr(sampling, "NUCLEUS_CANDIDATES", candidates)
    probabilities = torch.tensor([0.05, 0.3, 0.1, 0.25, 0.2, 0.06, 0.04])
    logits = probabilities.log()
    assert set(np.flatnonzero(many(logits, top_k=2))) == {1, 3}
    assert set(np.flatnonzero(many(logits, top_p=0.55))) == {1, 3}
    assert set(np.flatnonzero(many(logits, top_p=0.56))) == {1, 3, 4}
    # Of the three best, 0.3 / 0.75 = 0.4 is reached by one, 0.733 by two.
    assert set(np.flatnonzero(many(logits, top_k=3, top_p=0.7))) == {1, 3}
    assert set(np.flatnonzero(many(logits, top_p=1e-9))) == {1}


def test_a_nucleus_wider_than_the_candidates_is_still_whole(monkeypatch) -> None:
    monkeypatch.setattr(sampling, "NUCLEUS_CANDIDATES", 4)
    logits = torch.zeros(64)
    assert len(np.flatnonzero(many(logits, top_p=0.9))) in (58, 59)


def test_a_token_without_weight_is_never_drawn() -> None:
    logits = torch.full((600,), -1e9)
    logits[[3, 599]] = 0.0
    assert set(np.flatnonzero(many(logits, 1000))) == {3, 599}


def test_what_the_weights_are_computed_from_may_be_off_a_little(monkeypatch) -> None:
    """A cache that is computed again moves the logits by about 1e-5. Who wins the race changes at
    most with that probability; the sum of all weights up to a token would be far more easily upset.
    The perturbation is that of a hidden state, so that it is alike in tokens that are alike."""
    n, noise, generator = 600, 1e-3, torch.Generator().manual_seed(3)
    head = torch.randn(5000, 64, generator=generator) / 8
    h = torch.randn(n, 64, generator=generator) * 2
    off = h + noise * torch.randn(n, 64, generator=generator)
    before, after = h @ head.T, off @ head.T
    shift = float((before - after).abs().mean())
    for options in ({}, {"top_p": 0.9}, {"top_k": 50}):
        drawn = [
            draw(logits.clone(), [params(**options)] * n, keys(n)).tokens_R
            for logits in (before, after)
        ]
        flips = sum(a != b for a, b in zip(*drawn, strict=True))
        assert flips <= 2 * n * shift + 5 * np.sqrt(2 * n * shift), (options, flips, n * shift)


def test_a_poisoned_row_is_told_and_harms_no_other() -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    want = draw(logits, [params()] * 3, keys(3))
    for poison in (float("nan"), float("inf")):
        bad = logits.clone()
        bad[1, 17] = poison
        got = draw(bad, [params()] * 3, keys(3))
        assert got.ok_R == [True, False, True]
        assert [got.tokens_R[0], got.tokens_R[2]] == [want.tokens_R[0], want.tokens_R[2]]
