import math

import pytest
import torch

from plait.core.errors import RequestError
from plait.engines.torch.train.losses import LOSSES, choose, metrics

Q = [-1.0, -2.0, -3.0, -0.5]
LOGP = [-1.5, -1.0, -3.0, -0.2]
A = [1.0, 2.0, -1.0, -2.0]
REF = [-1.4, -1.1, -2.0, -0.9]
W = [1.0, 0.5, 2.0, 0.0]


def evaluate(name: str, config: dict[str, float], **inputs: list[float]):
    logp = torch.tensor(LOGP, requires_grad=True)
    total, report = choose(name, config)(logp, {k: torch.tensor(v) for k, v in inputs.items()})
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
        reports.append(loss(torch.tensor(LOGP[:n]), rows)[1])
    seen = metrics(reports)
    assert seen["tokens:sum"] == 4
    total = sum(r.per_token["kl_sampler"] for r in reports)
    assert seen["kl_sampler:mean"] == pytest.approx(total / 4)
    assert seen["logprob_diff:max"] == pytest.approx(1.0)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=", ".join(LOSSES)):
        choose("pop", {})
    with pytest.raises(RequestError, match="clip_low_threshold"):
        choose("ppo", {"clip": 0.2})
    with pytest.raises(RequestError, match="finite"):
        choose("ppo", {"kl_coef": math.nan})
    with pytest.raises(RequestError, match="0 or 1"):
        choose("ppo", {"kl_by_ratio": 0.5})


def test_the_reference_is_needed_only_with_a_coefficient() -> None:
    assert choose("ppo", {"kl_coef": 0.0}).needed == ("logprobs", "advantages")
    assert choose("ppo", {"kl_coef": 0.1}).needed == ("logprobs", "advantages", "ref_logprobs")
