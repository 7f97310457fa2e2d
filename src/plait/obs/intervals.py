"""Intervals: 95 % confidence intervals of rewards. Plain formulas, no random numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean with its 95 % interval over ``n`` values."""

    mean: float
    low: float
    high: float
    n: int


def mean_ci95(values: Sequence[float]) -> Interval | None:
    """Interval of a mean; ``None`` without values.

    Wilson's where every value is 0 or 1 (it stays honest at 0 of n and n of n), else the normal one
    with the sample's deviation; a single value has no width to tell, so its interval is infinite.
    """
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if all(v in (0, 1) for v in values):
        return _wilson(mean, n)
    if n == 1:
        return Interval(mean=mean, low=-math.inf, high=math.inf, n=1)
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    half = Z95 * math.sqrt(variance / n)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def difference_ci95(before: Interval, after: Interval) -> Interval:
    """Interval of ``after - before`` for independent samples, from their intervals (Newcombe's
    hybrid method, which keeps Wilson's asymmetry)."""
    mean = after.mean - before.mean
    down = math.hypot(after.mean - after.low, before.high - before.mean)
    up = math.hypot(after.high - after.mean, before.mean - before.low)
    return Interval(mean=mean, low=mean - down, high=mean + up, n=min(before.n, after.n))


def _wilson(p: float, n: int) -> Interval:
    z2 = Z95 * Z95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Interval(mean=p, low=max(0.0, centre - half), high=min(1.0, centre + half), n=n)
