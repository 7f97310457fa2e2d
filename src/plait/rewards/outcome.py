"""Outcome: what scoring one sample came to: a finite number, "not applicable", or an error.

The three are never confused. ``None`` without an error means that the function had nothing to say;
an error means that it failed, and is never read as a reward of 0.
"""

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plait.core.errors import RewardError
from plait.core.text import writable

MAX_ERROR_CHARS = 500
"""A traceback of a symbolic-maths library can be megabytes long, and it goes into every record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOutcome:
    """One sample's score by one function, or by several combined."""

    value: float | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.value is not None and (self.error is not None or not math.isfinite(self.value)):
            raise RewardError(f"{self.value} with error {self.error!r} is no outcome of a reward")


def failed(why: str, n: int) -> list[RewardOutcome]:
    """``n`` samples that were not scored for one and the same reason."""
    why = writable(why)
    short = why if len(why) <= MAX_ERROR_CHARS else why[: MAX_ERROR_CHARS - 1] + "…"
    return [RewardOutcome(error=short)] * n


def read_outcomes(raw: object, n: int, name: str) -> list[RewardOutcome]:
    """What a reward function returned for ``n`` samples, checked value by value."""
    if hasattr(raw, "tolist"):
        raw = raw.tolist()
    if not isinstance(raw, Sequence) or isinstance(raw, (str, bytes)):
        kind = type(raw).__name__
        return failed(f"reward {name} returned {kind}: return a list of {n} numbers", n)
    if len(raw) != n:
        return failed(f"reward {name} returned {len(raw)} values for {n} completions", n)
    return [read_value(value, f"reward {name} returned") for value in raw]


def read_value(value: object, says: str) -> RewardOutcome:
    """One value in plain numbers; ``says`` begins the error if it is no reward."""
    if value is None:
        return RewardOutcome()
    if hasattr(value, "item"):
        value = value.item()  # a numpy or torch scalar
    if not isinstance(value, numbers.Real):
        return RewardOutcome(error=f"{says} {type(value).__name__} where a number belongs")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        return RewardOutcome(error=f"{says} {number}: rewards must be finite")
    return RewardOutcome(value=number)


def combine(parts: Iterable[tuple[float, RewardOutcome]]) -> RewardOutcome:
    """Weighted sum of one sample's applicable rewards; ``None`` if none applies.

    An error of any of them makes the sum unknown, so it is the outcome.
    """
    total: float | None = None
    errors = []
    for weight, outcome in parts:
        if outcome.error is not None:
            errors.append(outcome.error)
        elif outcome.value is not None:
            total = (total or 0.0) + weight * outcome.value
    if errors:
        return failed("; ".join(errors), 1)[0]
    if total is not None and not math.isfinite(total):
        return RewardOutcome(error="the weighted sum of rewards is not finite: lower the weights")
    return RewardOutcome(value=total)
