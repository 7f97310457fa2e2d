"""Losses by name: what each reads, its options and their ranges. The formulas are the engines'.

Names, inputs and options are those of the Tinker API, with one addition: a KL penalty to a
reference (``kl_coef``; with ``kl_by_ratio`` 1 it is multiplied by the probability ratio).
``stable_reinforce`` is a name of theirs whose formula is not published: here it is a surrogate.
``docs/guide/losses.md`` has the formulas.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from plait.core.errors import RequestError

INPUTS = ("weights", "advantages", "logprobs", "ref_logprobs", "sequence_ratio_mask")
"""Loss inputs that exist; others are refused, for nothing would read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What every datum must bring, options with their defaults (``None``: must be given), and
    whether a position may have several targets."""

    inputs: tuple[str, ...] = ("logprobs", "advantages")
    options: Mapping[str, float | None]
    soft: bool = False


_KL = {"kl_coef": 0.0, "kl_by_ratio": 0.0}
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Bounds of the probability ratio itself. GSPO's are PPO's here so that one rule holds; its authors
bound a sequence's ratio at 3e-4 below and 4e-4 above 1."""

_TRUNCATE = {"clip_low_threshold": 0.0, "clip_high_threshold": 2.0}
"""A ratio that only ever weighs a gradient is bounded against explosion, not kept near 1: the cap
of truncated importance sampling."""

PENALTIES = ("kl_coef", "kl_coeff", "beta")
"""Options by which a token without an advantage is moved all the same."""

LOSSES = {
    "cross_entropy": Loss(inputs=(), options={}, soft=True),
    "importance_sampling": Loss(options=_KL),
    "ppo": Loss(options={**_KL, **_CLIP}),
    "cispo": Loss(options={**_KL, **_CLIP}),
    "dro": Loss(options={**_KL, "beta": None}),
    "gspo": Loss(options={**_KL, **_CLIP}),
    "stable_reinforce": Loss(options={"kl_coeff": 0.0, **_TRUNCATE}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A loss with all its options, checked."""

    name: str
    options: Mapping[str, float]
    needed: tuple[str, ...]
    """Inputs that every datum must bring."""
    soft: bool
    factors: tuple[str, ...]
    """Inputs that multiply the loss: a token for which one of them is given as 0 is not moved."""


def choose(name: str, config: Mapping[str, float]) -> Choice:
    """Check a loss's name and options; RequestError names the known ones and their ranges."""
    if name not in LOSSES:
        raise RequestError(f"unknown loss {name!r}; known: {', '.join(LOSSES)}")
    loss = LOSSES[name]
    for key, value in config.items():
        if key not in loss.options:
            known = ", ".join(loss.options) or "none"
            raise RequestError(f"loss {name} has no option {key!r}; known: {known}")
        if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
            raise RequestError(f"loss option {key} is {value!r}: give a finite number, 0 or more")
        if key == "kl_by_ratio" and value not in (0, 1):
            raise RequestError(f"loss option {key} is {value}: give 0 or 1")
    merged: dict[str, float | None] = {**loss.options, **config}
    options = {key: value for key, value in merged.items() if value is not None}
    if missing := [key for key in merged if key not in options]:
        raise RequestError(f"loss {name} needs the option {missing[0]!r}: give a number, 0 or more")
    low, high = options.get("clip_low_threshold", 0.0), options.get("clip_high_threshold", 0.0)
    if low > high:
        raise RequestError(
            f"clip_low_threshold {low} is above clip_high_threshold {high}: they bound the "
            "probability ratio from below and from above"
        )
    needed = loss.inputs + (("ref_logprobs",) if options.get("kl_coef") else ())
    factors = ["weights"]
    if "advantages" in loss.inputs and not any(options.get(name) for name in PENALTIES):
        factors.append("advantages")
    return Choice(name=name, options=options, needed=needed, soft=loss.soft, factors=tuple(factors))
