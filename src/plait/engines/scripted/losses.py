"""Losses of one scored token: value, slope by its log-prob, and what is reported about it.

Names, inputs, options and formulas are those of the Tinker API, with a KL penalty to a reference
added (``kl_coef``, estimator k3; times r with ``kl_by_ratio`` 1); ``weights``, where given,
multiply every token of every loss.
r = exp(log p − log q), q the sampler.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import expm1, isfinite

from plait.core.errors import RequestError

Inputs = Mapping[str, float]


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
class Loss:
    """What a loss reads, its options with defaults, and ``(logprob, …) → (loss, slope, means)``."""

    needs: tuple[str, ...]
    options: Mapping[str, float]
    formula: Callable[[float, Inputs, Inputs], tuple[float, float, dict[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A loss with its options, checked."""

    loss: Loss
    options: dict[str, float]
    needs: tuple[str, ...]

    def at(self, logprob: float, inputs: Inputs) -> Term:
        """The term of one token."""
        loss, slope, means = self.loss.formula(logprob, inputs, self.options)
        maxima = {}
        if (ref := inputs.get("ref_logprobs")) is not None:
            coef = self.options.get("kl_coef", 0.0)
            by_ratio = coef and self.options["kl_by_ratio"]
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


def choose(name: str, config: Mapping[str, float], *, weighted: bool) -> Chosen:
    """The loss and its full options; RequestError on an unknown name, key or value."""
    if name not in _LOSSES:
        raise RequestError(f"unknown loss {name!r}; known: {', '.join(_LOSSES)}")
    loss = _LOSSES[name]
    for key, value in config.items():
        if key not in loss.options:
            known = ", ".join(loss.options) or "none"
            raise RequestError(f"loss {name} has no option {key!r}; known: {known}")
        if not isfinite(value):
            raise RequestError(f"loss option {key} is {value}: give a finite number")
        if key == "kl_by_ratio" and value not in (0, 1):
            raise RequestError(f"loss option {key} is {value}: give 0 or 1")
    options = {**loss.options, **config}
    needs = loss.needs + (("weights",) if weighted else ())
    needs += ("ref_logprobs",) if options.get("kl_coef") else ()
    return Chosen(loss=loss, options=options, needs=needs)


def metrics(terms: list[Term]) -> dict[str, float]:
    """Of a whole batch, under names that end in their reduction."""
    out = {"loss:sum": sum(term.loss for term in terms), "tokens:sum": float(len(terms))}
    for name in terms[0].means if terms else ():
        out[f"{name}:mean"] = sum(term.means[name] for term in terms) / len(terms)
    for name in terms[0].maxima if terms else ():
        out[f"{name}:max"] = max(term.maxima[name] for term in terms)
    return out


def _cross_entropy(
    logprob: float, inputs: Inputs, options: Inputs
) -> tuple[float, float, dict[str, float]]:
    return -logprob, -1.0, {}


def _importance_sampling(
    logprob: float, inputs: Inputs, options: Inputs
) -> tuple[float, float, dict[str, float]]:
    value = -_ratio(logprob, inputs) * inputs["advantages"]
    return value, value, {}


def _ppo(logprob: float, inputs: Inputs, options: Inputs) -> tuple[float, float, dict[str, float]]:
    ratio, advantage = _ratio(logprob, inputs), inputs["advantages"]
    clipped = min(max(ratio, options["clip_low_threshold"]), options["clip_high_threshold"])
    is_clipped = clipped * advantage < ratio * advantage
    value = -min(ratio * advantage, clipped * advantage)
    # A clipped token earns no further gradient.
    return value, 0.0 if is_clipped else value, {"clip_fraction": float(is_clipped)}


def _ratio(logprob: float, inputs: Inputs) -> float:
    return _expm1(logprob - inputs["logprobs"]) + 1.0


def _expm1(x: float) -> float:
    try:
        return expm1(x)
    except OverflowError:
        return float("inf")


def _k3(log_ratio: float) -> float:
    return _expm1(log_ratio) - log_ratio


_SAMPLER = ("logprobs", "advantages")
_KL = {"kl_coef": 0.0, "kl_by_ratio": 0.0}
_LOSSES = {
    "cross_entropy": Loss(needs=(), options={}, formula=_cross_entropy),
    "importance_sampling": Loss(needs=_SAMPLER, options=_KL, formula=_importance_sampling),
    "ppo": Loss(
        needs=_SAMPLER,
        options={**_KL, "clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        formula=_ppo,
    ),
}
