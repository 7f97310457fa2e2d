"""Premises: are the assumptions true that sharing rests on? Measures over recorded steps and gaps.

*Inter-step consistency* (JigsawRL §4.1, Fig. 6): the tokens per forward step of one rollout
against those of the next. Forward steps, not seconds, are the axis: a busy machine stretches time.

*Idle gaps* (PlexRL asserts that those of different jobs are anti-correlated). Over all phases of
one job against another the mean correlation of two traces is exactly 0, whatever they are: at a
random phase gaps are independent. What sharing can use is the phase that placement chooses. So the
figures are the time in which both want the device: at a random phase, at the best, and at least.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import median

from plait.core.errors import ConfigError

POINTS = 200
"""Places at which curves are compared; rollouts of our jobs have tens to hundreds of steps."""

Curve = Sequence[tuple[float, float]]
"""Pieces of (length, height), in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consistency:
    """How alike neighbouring steps are."""

    n_pairs: int
    area: float
    """Median of the area between two curves over the mean area under them: 0 equal, 2 apart."""
    worst_area: float
    correlation: float
    """Median over pairs, of heights at the same forward step."""
    least_correlation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Opposition:
    """Shares of time in which two jobs want the device at once, by their relative phase."""

    busy: tuple[float, float]
    """Of each, alone."""
    random: float
    """At a random phase, on average: the product of both where bins are either full or empty."""
    best: float
    """At the phase that is best."""
    worst: float
    bound: float
    """No phase can have less: what the two are busy beyond the whole time."""
    best_correlation: float
    """Of the two traces at the best phase; -1 is a gap wherever the other is busy."""

    @property
    def avoided(self) -> float:
        """Share of the avoidable conflict of a random phase that the best one avoids, in [0, 1]; 1
        where there is none to avoid."""
        avoidable = self.random - self.bound
        return (self.random - self.best) / avoidable if avoidable > 1e-12 else 1.0


def consistency(curves: Sequence[Curve]) -> Consistency | None:
    """Of each step with the next; ``None`` if there are no two that did anything."""
    used = [curve for curve in curves if _area(curve) > 0]
    areas, correlations = [], []
    for a, b in pairwise(used):
        length = max(_length(a), _length(b))
        x, y = _heights(a, length), _heights(b, length)
        between = sum(abs(p - q) for p, q in zip(x, y, strict=True))
        areas.append(2 * between / (sum(x) + sum(y)))
        correlations.append(correlation(x, y))
    if not areas:
        return None
    return Consistency(
        n_pairs=len(areas),
        area=median(areas),
        worst_area=max(areas),
        correlation=median(correlations),
        least_correlation=min(correlations),
    )


def opposition(a: Sequence[float], b: Sequence[float]) -> Opposition:
    """Of two traces over the same time in equally many bins, each bin the share of it that the job
    is busy; one is turned against the other through all phases. ConfigError on unequal lengths."""
    n = len(a)
    if n != len(b) or n == 0:
        raise ConfigError(f"traces of {n} and {len(b)} bins: give the same number, at least one")
    both = [sum(min(x, b[(i + phase) % n]) for i, x in enumerate(a)) / n for phase in range(n)]
    least = min(range(n), key=lambda phase: both[phase])
    busy = (sum(a) / n, sum(b) / n)
    return Opposition(
        busy=busy,
        random=sum(both) / n,
        best=both[least],
        worst=max(both),
        bound=max(0.0, busy[0] + busy[1] - 1.0),
        best_correlation=correlation(a, [b[(i + least) % n] for i in range(n)]),
    )


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's; of two that do not vary 1 if they are equal, else 0."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    xy = sum((p - mean_x) * (q - mean_y) for p, q in zip(x, y, strict=True))
    xx, yy = sum((p - mean_x) ** 2 for p in x), sum((q - mean_y) ** 2 for q in y)
    if min(xx, yy) <= 1e-12 * n:
        return 1.0 if max(xx, yy) <= 1e-12 * n and abs(mean_x - mean_y) < 1e-9 else 0.0
    return max(-1.0, min(1.0, xy / sqrt(xx * yy)))


def _length(curve: Curve) -> float:
    return sum(length for length, _ in curve)


def _area(curve: Curve) -> float:
    return sum(length * height for length, height in curve)


def _heights(curve: Curve, length: float) -> list[float]:
    """Mean heights over ``POINTS`` equal parts of ``length``; 0 beyond the curve's end."""
    width = length / POINTS
    found = [0.0] * POINTS
    at = 0.0
    for piece, height in curve:
        end = at + piece
        i = min(POINTS - 1, int(at / width))
        while at < end - 1e-12 * length and i < POINTS:
            until = min(end, (i + 1) * width)
            found[i] += height * max(0.0, until - at) / width
            at, i = max(at, until), i + 1
        at = end
    return found
