import numpy as np
import pytest
import torch

from plait.core.operations import SamplingParams
from plait.engines.torch import sampling
from plait.engines.torch.sampling import draw, stream, uniforms


def params(**options) -> SamplingParams:
    return SamplingParams(max_tokens=1, **options)


def many(logits_V: torch.Tensor, n: int = 20_000, **options) -> np.ndarray:
    """Shares of the tokens in ``n`` draws with evenly spread uniforms."""
    u = (np.arange(n) + 0.5) / n
    drawn = draw(logits_V.repeat(n, 1), [params(**options)] * n, u)
    return np.bincount(drawn.tokens_R, minlength=len(logits_V)) / n


@pytest.mark.parametrize("n_vocab", [5, 256, 700, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_shares_are_the_softmax(n_vocab: int, temperature: float) -> None:
    logits = torch.randn(n_vocab, generator=torch.Generator().manual_seed(n_vocab)) * 2
    want = (logits.double() / temperature).softmax(-1).numpy()
    got = many(logits, temperature=temperature)
    assert np.abs(got - want).max() <= 2 / 20_000


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
    drawn = draw(logits, mixed, np.full(6, 0.37))
    want = logits.double().log_softmax(-1)[torch.arange(6), torch.tensor(drawn.tokens_R)]
    assert drawn.logprobs_R == pytest.approx(want.tolist(), abs=1e-6)
    assert drawn.tokens_R[2] == int(logits[2].argmax())


def test_a_row_is_drawn_alike_alone_and_among_others() -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))
    mixed = [params(), params(top_p=0.8), params(temperature=0.0), params(top_k=7), params()]
    u = np.linspace(0.05, 0.95, 5)
    together = draw(logits, mixed, u).tokens_R
    alone = [draw(logits[i : i + 1], [mixed[i]], u[i : i + 1]).tokens_R[0] for i in range(5)]
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
    for u in (0.0, 0.25, 0.4999999, 0.5, 1 - 2.0**-53):
        drawn = draw(logits[None], [params()], np.array([u]))
        assert drawn.tokens_R[0] == (3 if u < 0.5 else 599)


def test_a_poisoned_row_is_told_and_harms_no_other() -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    want = draw(logits, [params()] * 3, np.full(3, 0.6))
    for poison in (float("nan"), float("inf")):
        bad = logits.clone()
        bad[1, 17] = poison
        got = draw(bad, [params()] * 3, np.full(3, 0.6))
        assert got.ok_R == [True, False, True]
        assert [got.tokens_R[0], got.tokens_R[2]] == [want.tokens_R[0], want.tokens_R[2]]


def test_uniforms_are_uniform_and_a_function_of_seed_index_and_place() -> None:
    streams = [stream(seed, index) for seed in range(30) for index in range(30)]
    assert len(set(streams)) == 900
    u = uniforms(np.repeat(np.array(streams, dtype=np.uint64), 10), np.tile(np.arange(10), 900))
    assert len(np.unique(u)) == len(u)
    assert 0 <= u.min() < u.max() < 1
    counts = np.histogram(u, 20, (0, 1))[0]
    assert np.abs(counts - 450).max() < 110  # five standard deviations
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.05
    again = uniforms([streams[31]], [4])
    assert again[0] == u[314]


def test_negative_and_huge_seeds_are_seeds() -> None:
    assert len({stream(seed, 0) for seed in (-1, 0, 1, 2**63, 2**70 + 5)}) == 5
