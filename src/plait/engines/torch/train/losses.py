"""Losses: what is minimised over the scored tokens of a batch. Always a sum, never a mean.

Names, inputs, options and formulas are those of the Tinker API, with one addition: a KL penalty
to a reference (``kl_coef``, estimator k3 of Schulman, "Approximating KL divergence"; with
``kl_by_ratio`` 1 times the probability ratio, TRL's default, which makes its gradient unbiased for
tokens that an older policy drew). ``weights`` multiply every token of every loss; normalisation
(by tokens, by sequences) is the algorithm's and is put into them.

Shapes: M scored tokens. Log-probs are of the policy being trained (``logp``), of the policy that
drew the tokens (``logprobs``) and of the reference (``ref_logprobs``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from plait.core.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one micro-batch's loss came to: sums over its tokens, and maxima."""

    loss: float
    tokens: int
    per_token: dict[str, float]
    """Sums of what is reported as a mean over tokens."""
    maxima: dict[str, float]


def metrics(reports: Sequence[Report]) -> dict[str, float]:
    """Of several micro-batches together, under names that end in their reduction."""
    tokens = sum(r.tokens for r in reports)
    out = {"loss:sum": sum(r.loss for r in reports), "tokens:sum": float(tokens)}
    for name in reports[0].per_token:
        out[f"{name}:mean"] = sum(r.per_token[name] for r in reports) / tokens
    for name in reports[0].maxima:
        out[f"{name}:max"] = max(r.maxima[name] for r in reports)
    return out


Terms = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""Loss of each scored token (before its weight), and per-token values to report the mean of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One loss: what it reads, which options it knows (with defaults), and its formula."""

    inputs: tuple[str, ...]
    options: Mapping[str, float]
    formula: Callable[[torch.Tensor, Mapping[str, torch.Tensor], Mapping[str, float]], Terms]


def _cross_entropy(logp_M, inputs, options) -> Terms:
    return -logp_M, {}


def _importance_sampling(logp_M, inputs, options) -> Terms:
    ratio_M = torch.exp(logp_M - inputs["logprobs"])
    return -ratio_M * inputs["advantages"], {}


def _ppo(logp_M, inputs, options) -> Terms:
    ratio_M, advantage_M = torch.exp(logp_M - inputs["logprobs"]), inputs["advantages"]
    low, high = options["clip_low_threshold"], options["clip_high_threshold"]
    plain_M, clipped_M = ratio_M * advantage_M, ratio_M.clamp(low, high) * advantage_M
    return -torch.minimum(plain_M, clipped_M), {"clip_fraction": (clipped_M < plain_M).float()}


_KL = {"kl_coef": 0.0, "kl_by_ratio": 0.0}

LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(inputs=(), options={}, formula=_cross_entropy),
    "importance_sampling": Loss(
        inputs=("logprobs", "advantages"), options=_KL, formula=_importance_sampling
    ),
    "ppo": Loss(
        inputs=("logprobs", "advantages"),
        options={**_KL, "clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        formula=_ppo,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A loss with its options, checked."""

    loss: Loss
    options: dict[str, float]
    needed: tuple[str, ...]
    """Inputs that every datum must bring."""

    def __call__(
        self, logp_M: torch.Tensor, inputs_M: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, Report]:
        """The summed loss of one micro-batch, differentiable in ``logp``, and its report."""
        terms_M, means_M = self.loss.formula(logp_M, inputs_M, self.options)
        maxima: dict[str, float] = {}
        now_M = logp_M.detach()
        if (ref_M := inputs_M.get("ref_logprobs")) is not None:
            if coefficient := self.options.get("kl_coef"):
                kl_M = _k3(ref_M - logp_M)
                if self.options["kl_by_ratio"]:
                    kl_M = kl_M * torch.exp(logp_M - inputs_M["logprobs"])
                terms_M = terms_M + coefficient * kl_M
            means_M["kl_ref"] = _k3(ref_M - now_M)
        if (sampled_M := inputs_M.get("logprobs")) is not None:
            means_M["kl_sampler"] = _k3(now_M - sampled_M)
            maxima["logprob_diff"] = float((now_M - sampled_M).abs().max())
        if (weights_M := inputs_M.get("weights")) is not None:
            terms_M = terms_M * weights_M
        total = terms_M.sum()
        report = Report(
            loss=float(total.detach()),
            tokens=logp_M.shape[0],
            per_token={name: float(values.sum()) for name, values in means_M.items()},
            maxima=maxima,
        )
        return total, report


def choose(name: str, config: Mapping[str, float]) -> Chosen:
    """Check a loss's name and options; RequestError names the known ones."""
    if name not in LOSSES:
        raise RequestError(f"unknown loss {name!r}; known: {', '.join(LOSSES)}")
    loss = LOSSES[name]
    for key, value in config.items():
        if key not in loss.options:
            known = ", ".join(loss.options) or "none"
            raise RequestError(f"loss {name} has no option {key!r}; known: {known}")
        if not math.isfinite(value):
            raise RequestError(f"loss option {key} is {value}: give a finite number")
        if key == "kl_by_ratio" and value not in (0, 1):
            raise RequestError(f"loss option {key} is {value}: give 0 or 1")
    options = {**loss.options, **config}
    needed = loss.inputs + (("ref_logprobs",) if options.get("kl_coef") else ())
    return Chosen(loss=loss, options=options, needed=needed)


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """``exp(x) - x - 1``, x = log q - log p: unbiased for KL(p ‖ q) on p's tokens, never < 0."""
    return torch.expm1(log_ratio) - log_ratio
