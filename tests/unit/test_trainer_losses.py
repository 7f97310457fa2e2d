import math

import pytest
import torch

from plait.core.losses import LOSSES
from plait.engines.torch.train.losses import FORMULAS, choose, metrics

Q = [-1.0, -2.0, -3.0, -0.5]
LOGP = [-1.5, -1.0, -3.0, -0.2]
A = [1.0, 2.0, -1.0, -2.0]
REF = [-1.4, -1.1, -2.0, -0.9]
W = [1.0, 0.5, 2.0, 0.0]
COUNTS = (1, 3)
"""Two sequences."""


def evaluate(name: str, config: dict[str, float], **inputs: list[float]):
    logp = torch.tensor(LOGP, requires_grad=True)
    rows = {k: torch.tensor(v) for k, v in inputs.items()}
    total, report = choose(name, config)(logp, rows, COUNTS)
    total.backward()
    return total.item(), logp.grad.tolist(), metrics([report])


def test_cross_entropy_is_a_weighted_sum() -> None:
    total, grad, seen = evaluate("cross_entropy", {}, weights=W)
    assert total == pytest.approx(-sum(w * p for w, p in zip(W, LOGP, strict=True)))
    assert grad == [-w for w in W]
    assert seen == {"loss:sum": total, "tokens:sum": 4.0}


def test_importance_sampling() -> None:
    total, grad, seen = evaluate("importance_sampling", {}, logprobs=Q, advantages=A, weights=W)
    terms = [-w * math.exp(p - q) * a for w, p, q, a in zip(W, LOGP, Q, A, strict=True)]
    assert total == pytest.approx(sum(terms), rel=1e-6)
    assert grad == pytest.approx(terms, rel=1e-6)
    assert seen["logprob_diff:max"] == pytest.approx(1.0)
    k3 = [math.exp(p - q) - (p - q) - 1 for p, q in zip(LOGP, Q, strict=True)]
    assert seen["kl_sampler:mean"] == pytest.approx(sum(k3) / 4, rel=1e-5)


def test_ppo_clips_as_configured() -> None:
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.5}
    total, grad, seen = evaluate("ppo", config, logprobs=Q, advantages=A)
    ratios = [math.exp(p - q) for p, q in zip(LOGP, Q, strict=True)]
    kept = [min(r * a, min(max(r, 0.9), 1.5) * a) for r, a in zip(ratios, A, strict=True)]
    assert total == pytest.approx(-sum(kept), rel=1e-5)
    # Only the second is clipped: its ratio e is above 1.5 with a positive advantage.
    assert [g == 0 for g in grad] == [False, True, False, False]
    assert seen["clip_fraction:mean"] == 0.25


@pytest.mark.parametrize("name", ["ppo", "importance_sampling"])
def test_kl_to_the_reference(name: str) -> None:
    inputs = {"logprobs": LOGP, "advantages": [0.0] * 4, "ref_logprobs": REF, "weights": W}
    total, _, seen = evaluate(name, {"kl_coef": 0.1}, **inputs)
    k3 = [math.exp(r - p) - (r - p) - 1 for r, p in zip(REF, LOGP, strict=True)]
    assert total == pytest.approx(0.1 * sum(w * k for w, k in zip(W, k3, strict=True)), rel=1e-5)
    assert seen["kl_ref:mean"] == pytest.approx(sum(k3) / 4, rel=1e-5)
    assert evaluate(name, {}, **inputs)[0] == 0
    inputs["logprobs"] = Q
    ratios = [math.exp(p - q) for p, q in zip(LOGP, Q, strict=True)]
    total, _, seen = evaluate(name, {"kl_coef": 0.1, "kl_by_ratio": 1.0}, **inputs)
    terms = [w * k * r for w, k, r in zip(W, k3, ratios, strict=True)]
    assert total == pytest.approx(0.1 * sum(terms), rel=1e-5)
    assert seen["kl_ref:mean"] == pytest.approx(sum(k3) / 4, rel=1e-5), "reported as it is"


def test_reports_fold_by_tokens() -> None:
    loss = choose("importance_sampling", {})
    reports = []
    for n in (1, 3):
        rows = {"logprobs": torch.tensor(Q[:n]), "advantages": torch.tensor(A[:n])}
        reports.append(loss(torch.tensor(LOGP[:n]), rows, (n,))[1])
    seen = metrics(reports)
    assert seen["tokens:sum"] == 4
    total = sum(r.per_token["kl_sampler"] for r in reports)
    assert seen["kl_sampler:mean"] == pytest.approx(total / 4)
    assert seen["logprob_diff:max"] == pytest.approx(1.0)


def test_every_loss_has_a_formula() -> None:
    assert list(FORMULAS) == list(LOSSES)


def test_cispo_clips_the_weight_and_still_learns() -> None:
    total, grad, seen = evaluate("cispo", {}, logprobs=Q, advantages=A)
    kept = [min(max(math.exp(p - q), 0.8), 1.2) for p, q in zip(LOGP, Q, strict=True)]
    slopes = [-k * a for k, a in zip(kept, A, strict=True)]
    assert total == pytest.approx(sum(s * p for s, p in zip(slopes, LOGP, strict=True)), abs=1e-6)
    assert grad == pytest.approx(slopes, rel=1e-6)
    # Ratios e^-0.5, e, 1, e^0.3: all but the third lie outside, and none has lost its gradient.
    assert seen["clip_fraction:mean"] == 0.75


def test_dro_pulls_the_log_prob_back_to_the_samplers() -> None:
    total, grad, _ = evaluate("dro", {"beta": 0.5}, logprobs=Q, advantages=A)
    rows = list(zip(LOGP, Q, A, strict=True))
    assert total == pytest.approx(-sum(p * a - 0.25 * (p - q) ** 2 for p, q, a in rows), rel=1e-6)
    assert grad == pytest.approx([0.5 * (p - q) - a for p, q, a in rows], rel=1e-6)


def test_gspo_gives_every_token_the_ratio_of_its_sequence() -> None:
    wide = {"clip_low_threshold": 0.0, "clip_high_threshold": 9.0}
    total, grad, _ = evaluate("gspo", wide, logprobs=Q, advantages=A, weights=W)
    diffs = [p - q for p, q in zip(LOGP, Q, strict=True)]
    second = math.exp(sum(diffs[1:]) / 3)
    terms = [-w * s * a for w, s, a in zip(W, [math.exp(diffs[0])] + [second] * 3, A, strict=True)]
    assert total == pytest.approx(sum(terms), rel=1e-6)
    # A token's gradient is its own: the ratio of its sequence is held.
    assert grad == pytest.approx(terms, rel=1e-6)


def test_gspo_takes_the_mean_over_the_masked_tokens_only() -> None:
    wide = {"clip_low_threshold": 0.0, "clip_high_threshold": 9.0}
    member = [1.0, 1.0, 0.0, 1.0]
    total, grad, _ = evaluate("gspo", wide, logprobs=Q, advantages=A, sequence_ratio_mask=member)
    second = math.exp((1.0 + 0.3) / 2)
    terms = [-s * a for s, a in zip([math.exp(-0.5)] + [second] * 3, A, strict=True)]
    assert total == pytest.approx(sum(terms), rel=1e-6)
    assert grad == pytest.approx(terms, rel=1e-6)


def test_gspo_clips_whole_sequences() -> None:
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    total, grad, seen = evaluate("gspo", config, logprobs=Q, advantages=A)
    # Ratios e^-0.5 and e^0.43: clipped where the advantage would take them further.
    second = math.exp(1.3 / 3)
    kept = [math.exp(-0.5) * 1.0, 1.1 * 2.0, second * -1.0, second * -2.0]
    assert total == pytest.approx(-sum(kept), rel=1e-6)
    assert [g == 0 for g in grad] == [False, True, False, False]
    assert seen["clip_fraction:mean"] == 0.25
