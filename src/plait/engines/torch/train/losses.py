"""Losses: what is minimised over the scored tokens of a batch. Always a sum, never a mean.

Which losses there are, what they read and their options are ``core.losses``'. The KL penalty to a
reference is estimator k3 of Schulman, "Approximating KL divergence"; times the probability ratio
(TRL's default) its gradient is unbiased for tokens that an older policy drew. ``weights`` multiply
every token of every loss; normalisation (by tokens, by sequences) is the algorithm's and is put
into them.

Shapes: M scored tokens, of B sequences; K soft targets are K tokens. Log-probs are of the policy
being trained (``logp``), of the policy that drew the tokens (``logprobs``) and of the reference
(``ref_logprobs``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from plait.core import losses
from plait.core.losses import Choice
from plait.engines.torch.train.batch import Stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one micro-batch's loss came to: sums over its tokens, and maxima."""

    loss: float
    tokens: int
    per_token: dict[str, float]
    """Sums of what is reported as a mean over tokens."""
    maxima: dict[str, float]
    own: Mapping[str, float] = field(default_factory=dict)
    """Sums over its data of a client's own metrics, under their whole names."""
    data: int = 0
    """How many data these are of."""


def metrics(reports: Sequence[Report]) -> dict[str, float]:
    """Of several micro-batches together, under names that end in their reduction."""
    tokens = sum(r.tokens for r in reports)
    out = {"loss:sum": sum(r.loss for r in reports), "tokens:sum": float(tokens)}
    for name in reports[0].per_token:
        out[f"{name}:mean"] = sum(r.per_token[name] for r in reports) / tokens
    for name in reports[0].maxima:
        out[f"{name}:max"] = max(r.maxima[name] for r in reports)
    for name in reports[0].own:
        total = sum(r.own[name] for r in reports)
        out[name] = total / sum(r.data for r in reports) if name.endswith(":mean") else total
    return out


Terms = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""Loss of each scored token (before its weight), and per-token values to report the mean of."""

Formula = Callable[
    [torch.Tensor, Mapping[str, torch.Tensor], Mapping[str, float], Sequence[int]], Terms
]
"""Of log-probs, inputs, options, and the number of scored tokens of each sequence."""


def _cross_entropy(logp_M, inputs, options, counts) -> Terms:
    return -logp_M, {}


def _importance_sampling(logp_M, inputs, options, counts) -> Terms:
    ratio_M = torch.exp(logp_M - inputs["logprobs"])
    return -ratio_M * inputs["advantages"], {}


def _ppo(logp_M, inputs, options, counts) -> Terms:
    return _clipped(torch.exp(logp_M - inputs["logprobs"]), inputs["advantages"], options)


def _cispo(logp_M, inputs, options, counts) -> Terms:
    ratio_M = torch.exp(logp_M.detach() - inputs["logprobs"])
    kept_M = _within(ratio_M, options)
    return -kept_M * logp_M * inputs["advantages"], {"clip_fraction": (kept_M != ratio_M).float()}


def _dro(logp_M, inputs, options, counts) -> Terms:
    penalty_M = 0.5 * options["beta"] * (logp_M - inputs["logprobs"]).square()
    return penalty_M - logp_M * inputs["advantages"], {}


def _gspo(logp_M, inputs, options, counts) -> Terms:
    """The ratio of every token is its sequence's (GSPO-token, arXiv 2507.18071)."""
    now_M = logp_M.detach()
    log_ratio_M = now_M - inputs["logprobs"]
    in_mean_M = inputs.get("sequence_ratio_mask", torch.ones_like(now_M))
    pairs = zip((log_ratio_M * in_mean_M).split(counts), in_mean_M.split(counts), strict=True)
    mean_B = torch.stack([total.sum() / members.sum() for total, members in pairs])
    mean_M = mean_B.repeat_interleave(torch.tensor(counts, device=mean_B.device))
    return _clipped(torch.exp(mean_M + logp_M - now_M), inputs["advantages"], options)


def _stable_reinforce(logp_M, inputs, options, counts) -> Terms:
    """REINFORCE with truncated ratios, and a penalty on leaving the policy that drew the tokens."""
    terms_M, means_M = _cispo(logp_M, inputs, options, counts)
    return terms_M + options["kl_coeff"] * _k3(inputs["logprobs"] - logp_M), means_M


def _clipped(ratio_M, advantage_M, options) -> Terms:
    plain_M, clipped_M = ratio_M * advantage_M, _within(ratio_M, options) * advantage_M
    return -torch.minimum(plain_M, clipped_M), {"clip_fraction": (clipped_M < plain_M).float()}


def _within(ratio_M, options):
    return ratio_M.clamp(options["clip_low_threshold"], options["clip_high_threshold"])


FORMULAS: dict[str, Formula] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
    "gspo": _gspo,
    "stable_reinforce": _stable_reinforce,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A checked loss with its formula."""

    choice: Choice
    formula: Formula

    def on(self, logp_M: torch.Tensor, stretch: Stretch) -> tuple[torch.Tensor, Report]:
        """What to derive of a run's part of a micro-batch, and its report."""
        return self(logp_M, stretch.inputs_M, stretch.counts)

    def __call__(
        self, logp_M: torch.Tensor, inputs_M: Mapping[str, torch.Tensor], counts: Sequence[int]
    ) -> tuple[torch.Tensor, Report]:
        """The summed loss of one micro-batch, differentiable in ``logp``, and its report.

        ``counts`` are the scored tokens of each sequence; they sum to M.
        """
        options = self.choice.options
        terms_M, means_M = self.formula(logp_M, inputs_M, options, counts)
        maxima: dict[str, float] = {}
        now_M = logp_M.detach()
        if (ref_M := inputs_M.get("ref_logprobs")) is not None:
            if coefficient := options.get("kl_coef"):
                kl_M = _k3(ref_M - logp_M)
                if options["kl_by_ratio"]:
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
    choice = losses.choose(name, config)
    return Chosen(choice=choice, formula=FORMULAS[name])


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """``exp(x) - x - 1``, x = log q - log p: unbiased for KL(p ‖ q) on p's tokens, never < 0."""
    return torch.expm1(log_ratio) - log_ratio
