"""Losses of one datum's scored tokens: values, slopes by their log-probs, what is reported of them.

Which losses there are, what they read and their options are ``core.losses``'. The KL penalty is
estimator k3; ``weights``, where given, multiply every token of every loss.
r = exp(log p − log q), q the sampler.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, fsum

from plait.core import losses
from plait.core.losses import Choice

Inputs = Mapping[str, float]
Formula = Callable[[float, Inputs, Inputs], tuple[float, float, dict[str, float]]]
"""``(logprob, inputs, options) → (loss, slope, means)``."""

SEQUENCE_LOG_RATIO = "sequence_log_ratio"
"""Beside the inputs of each token: the mean of its sequence's log-ratios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One token's share of the loss."""

    loss: float
    slope: float
    """∂ loss / ∂ log-prob."""
    means: dict[str, float]
    """Reported as means over tokens."""
    maxima: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A checked loss with its formula."""

    choice: Choice
    formula: Formula

    def of(self, logprobs: Sequence[float], rows: Sequence[Inputs]) -> list[Term]:
        """The terms of one datum, from each token's log-prob and inputs."""
        if self.choice.name == "gspo":
            mean = _mean_log_ratio(logprobs, rows)
            rows = [{**row, SEQUENCE_LOG_RATIO: mean} for row in rows]
        return [self._at(logprob, row) for logprob, row in zip(logprobs, rows, strict=True)]

    def metrics(self, terms: list[Term]) -> dict[str, float]:
        """Of all its data."""
        return metrics(terms)

    def _at(self, logprob: float, inputs: Inputs) -> Term:
        options = self.choice.options
        loss, slope, means = self.formula(logprob, inputs, options)
        maxima = {}
        if (ref := inputs.get("ref_logprobs")) is not None:
            coef = options.get("kl_coef", 0.0)
            by_ratio = coef and options["kl_by_ratio"]
            scale = coef * (_ratio(logprob, inputs) if by_ratio else 1.0)
            loss += scale * _k3(ref - logprob)
            slope -= scale * _expm1(ref - logprob)
            slope += scale * _k3(ref - logprob) if by_ratio else 0.0
            means["kl_ref"] = _k3(ref - logprob)
        if (sampled := inputs.get("logprobs")) is not None:
            means["kl_sampler"] = _k3(logprob - sampled)
            maxima["logprob_diff"] = abs(logprob - sampled)
        weight = inputs.get("weights", 1.0)
        return Term(loss=loss * weight, slope=slope * weight, means=means, maxima=maxima)


def choose(name: str, config: Mapping[str, float]) -> Chosen:
    """The loss and its full options; RequestError on an unknown name, key or value."""
    choice = losses.choose(name, config)
    return Chosen(choice=choice, formula=_FORMULAS[name])


def metrics(terms: list[Term]) -> dict[str, float]:
    """Of a whole batch, under names that end in their reduction."""
    out = {"loss:sum": sum(term.loss for term in terms), "tokens:sum": float(len(terms))}
    for name in terms[0].means if terms else ():
        out[f"{name}:mean"] = sum(term.means[name] for term in terms) / len(terms)
    for name in terms[0].maxima if terms else ():
        out[f"{name}:max"] = max(term.maxima[name] for term in terms)
    return out


Result = tuple[float, float, dict[str, float]]


def _cross_entropy(logprob: float, inputs: Inputs, options: Inputs) -> Result:
    return -logprob, -1.0, {}


def _importance_sampling(logprob: float, inputs: Inputs, options: Inputs) -> Result:
    value = -_ratio(logprob, inputs) * inputs["advantages"]
    return value, value, {}


def _ppo(logprob: float, inputs: Inputs, options: Inputs) -> Result:
    return _clipped(_ratio(logprob, inputs), inputs["advantages"], options)


def _cispo(logprob: float, inputs: Inputs, options: Inputs) -> Result:
    ratio = _ratio(logprob, inputs)
    kept = _within(ratio, options)
    slope = -kept * inputs["advantages"]
    return slope * logprob, slope, {"clip_fraction": float(kept != ratio)}


def _dro(logprob: float, inputs: Inputs, options: Inputs) -> Result:
    advantage, beta = inputs["advantages"], options["beta"]
    log_ratio = logprob - inputs["logprobs"]
    loss = 0.5 * beta * log_ratio**2 - logprob * advantage
    return loss, beta * log_ratio - advantage, {}


def _gspo(logprob: float, inputs: Inputs, options: Inputs) -> Result:
    return _clipped(_expm1(inputs[SEQUENCE_LOG_RATIO]) + 1.0, inputs["advantages"], options)


def _stable_reinforce(logprob: float, inputs: Inputs, options: Inputs) -> Result:
    loss, slope, means = _cispo(logprob, inputs, options)
    back = inputs["logprobs"] - logprob
    coefficient = options["kl_coeff"]
    return loss + coefficient * _k3(back), slope - coefficient * _expm1(back), means


def _clipped(ratio: float, advantage: float, options: Inputs) -> Result:
    clipped = _within(ratio, options)
    is_clipped = clipped * advantage < ratio * advantage
    value = -min(ratio * advantage, clipped * advantage)
    # A clipped token earns no further gradient.
    return value, 0.0 if is_clipped else value, {"clip_fraction": float(is_clipped)}


def _within(ratio: float, options: Inputs) -> float:
    return min(max(ratio, options["clip_low_threshold"]), options["clip_high_threshold"])


def _mean_log_ratio(logprobs: Sequence[float], rows: Sequence[Inputs]) -> float:
    members = [row.get("sequence_ratio_mask", 1.0) for row in rows]
    log_ratios = [p - row["logprobs"] for p, row in zip(logprobs, rows, strict=True)]
    weighted = [x * m for x, m in zip(log_ratios, members, strict=True)]
    return fsum(weighted) / fsum(members) if rows else 0.0


def _ratio(logprob: float, inputs: Inputs) -> float:
    return _expm1(logprob - inputs["logprobs"]) + 1.0


def _expm1(x: float) -> float:
    try:
        return expm1(x)
    except OverflowError:
        return float("inf")


def _k3(log_ratio: float) -> float:
    return _expm1(log_ratio) - log_ratio


_FORMULAS: dict[str, Formula] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
    "gspo": _gspo,
    "stable_reinforce": _stable_reinforce,
}
