"""Table: measured slowdowns, interpolated; the analytic model where nothing was measured.

Points are grouped by what runs and what runs beside it, each with its tokens per forward step:

- between shares, a power law through the two nearest (straight in logarithms); the measured values
  are first made non-increasing in the share, each violation replaced by its mean;
- between token counts, straight in the logarithm of the tokens;
- below the least and above the greatest share, the analytic model's shape through the last point;
- tokens beyond what was measured take the nearest measured, if it is in the same bucket;
- another kind, another neighbour, or tokens of another bucket: the analytic model alone. So is what
  missing memory costs.

Invariants: at least 1; alone with the whole worker exactly 1; never less with a smaller share.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, isfinite, log
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError
from plait.core.substages import Kind, Substage
from plait.profiles.cutting import bucket
from plait.profiles.slowdown import Analytic, Slowdown

VERSION = 1
"""Of the file. Another one is refused: its numbers may mean something else."""
MEASURED = ("rollout", "train", "reference")
"""Groups of kinds: the buckets of rollout are one, told apart by their tokens."""

Level = tuple[str, int]
"""A group and the tokens of a forward step."""
Curve = tuple[tuple[float, float], ...]
"""Slowdown by share, shares rising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement: ``own`` took ``slowdown`` times as long as alone on the whole worker."""

    own: str
    """One of ``MEASURED``."""
    own_tokens: int
    """Per forward step; for training and reference, per micro-batch."""
    compute: float
    slowdown: float
    beside: str | None = None
    beside_tokens: int = 0


class Table:
    """A ``Slowdown`` of measured points."""

    def __init__(self, points: Iterable[Point], fallback: Slowdown | None = None) -> None:
        self._fallback = fallback or Analytic()
        found: dict[Level, dict[Level | None, list[tuple[float, float]]]]
        found = defaultdict(lambda: defaultdict(list))
        for point in points:
            _check(point)
            beside = None if point.beside is None else (point.beside, point.beside_tokens)
            own = (point.own, point.own_tokens)
            found[own][beside].append((point.compute, max(1.0, point.slowdown)))
        for by in found.values():
            if None in by:  # by definition, whatever was measured
                by[None] = [p for p in by[None] if p[0] < 1.0] + [(1.0, 1.0)]
        self._curves: dict[Level, dict[Level | None, Curve]] = {
            own: {beside: _monotone(seen) for beside, seen in by.items()}
            for own, by in found.items()
        }

    def __call__(
        self, own: Substage, beside: Substage | None, compute: float, memory: float
    ) -> float:
        """See ``Slowdown``."""
        if not own.kind.on_device:
            return 1.0
        if beside is not None and not beside.kind.on_device:
            beside = None
        if beside is None and compute >= 1.0:
            return self._fallback(own, None, 1.0, memory)
        measured = self._measured(own, beside, compute)
        if measured is None:
            return self._fallback(own, beside, compute, memory)
        short = self._fallback(own, None, 1.0, memory)
        return max(1.0, measured) * short

    def _measured(self, own: Substage, beside: Substage | None, compute: float) -> float | None:
        levels = [o for o, by in self._curves.items() if self._has(by, beside)]
        near = _near(own, levels)
        found = []
        for level in near:
            curves = self._curves[level]
            if beside is None:
                found.append(self._at(curves[None], own, None, compute))
                continue
            neighbours = _near(beside, [b for b in curves if b is not None])
            at = [self._at(curves[b], own, beside, compute) for b in neighbours]
            found.append(_between(beside.tokens, neighbours, at))
        return _between(own.tokens, near, found) if found else None

    @staticmethod
    def _has(curves: Mapping[Level | None, Curve], beside: Substage | None) -> bool:
        if beside is None:
            return None in curves
        return bool(_near(beside, [b for b in curves if b is not None]))

    def _at(self, curve: Curve, own: Substage, beside: Substage | None, compute: float) -> float:
        shares = [share for share, _ in curve]
        place = bisect_left(shares, compute)
        if place < len(curve) and shares[place] == compute:
            return curve[place][1]
        if 0 < place < len(curve):
            (x0, y0), (x1, y1) = curve[place - 1], curve[place]
            return exp(_line(log(compute), (log(x0), log(y0)), (log(x1), log(y1))))
        edge, value = curve[0] if place == 0 else curve[-1]
        shape = self._fallback(own, beside, compute, 1.0) / self._fallback(own, beside, edge, 1.0)
        return max(1.0, value * shape)


def group(kind: Kind) -> str:
    """What a kind is measured as; its own name where nothing like it is."""
    return "rollout" if kind.rolls_out else kind.value


def save(points: Sequence[Point], file: Path, **about: Any) -> None:
    """Write the points as JSON; ``about`` (model, machine) is for people."""
    rows = [asdict(point) for point in points]
    file.write_text(json.dumps({"version": VERSION, **about, "points": rows}, indent=1) + "\n")


def load(file: Path) -> tuple[Point, ...]:
    """The points in ``file``; ConfigError if it cannot be read, is of another version, or has a
    number that is no slowdown."""
    try:
        raw = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot read {file}: give a slowdown file as plait profile writes it"
        ) from error
    version = raw.get("version") if isinstance(raw, dict) else None
    if version != VERSION:
        raise ConfigError(f"{file} is of version {version!r}, not {VERSION}: profile again")
    try:
        points = tuple(Point(**row) for row in raw["points"])
        for point in points:
            _check(point)
    except (KeyError, TypeError, ConfigError) as error:
        raise ConfigError(f"{file} is no slowdown file ({error}): profile again") from error
    return points


def _near(substage: Substage, levels: Iterable[Level]) -> list[Level]:
    """The measured levels around a sub-stage's tokens: two, or one, or none that is like it."""
    mine = sorted(level for level in levels if level[0] == group(substage.kind))
    place = bisect_left(mine, (group(substage.kind), substage.tokens))
    if place < len(mine) and mine[place][1] == substage.tokens:
        return [mine[place]]
    if 0 < place < len(mine):
        return mine[place - 1 : place + 1]
    edge = mine[:1] if place == 0 else mine[-1:]
    if substage.kind.rolls_out:  # training is one regime whatever its tokens, rollout is three
        return [level for level in edge if bucket(level[1]) is bucket(substage.tokens)]
    return edge


def _between(tokens: int, levels: Sequence[Level], values: Sequence[float]) -> float:
    if len(levels) == 1:
        return values[0]
    (_, low), (_, high) = levels
    return _line(log(tokens), (log(low), values[0]), (log(high), values[1]))


def _line(x: float, a: tuple[float, float], b: tuple[float, float]) -> float:
    return a[1] + (b[1] - a[1]) * (x - a[0]) / (b[0] - a[0])


def _monotone(seen: Iterable[tuple[float, float]]) -> Curve:
    """Values by share, never rising with it: neighbours that do are replaced by their mean."""
    by_share: dict[float, list[float]] = {}
    for share, value in seen:
        by_share.setdefault(share, []).append(value)
    blocks: list[tuple[float, list[float]]] = []
    """Sum and shares of values that have become one."""
    for share in sorted(by_share):
        total, shares = sum(by_share[share]) / len(by_share[share]), [share]
        while blocks and blocks[-1][0] / len(blocks[-1][1]) < total / len(shares):
            before, its_shares = blocks.pop()
            total, shares = before + total, its_shares + shares
        blocks.append((total, shares))
    return tuple((share, total / len(shares)) for total, shares in blocks for share in shares)


def _check(point: Point) -> None:
    numbers = (point.compute, point.slowdown, point.own_tokens, point.beside_tokens)
    if not all(_is_number(n) for n in numbers):
        raise ConfigError(f"{point} is not made of finite numbers: measure it again")
    if not 0 < point.compute <= 1 or point.slowdown <= 0 or point.own_tokens < 1:
        raise ConfigError(
            f"compute {point.compute}, slowdown {point.slowdown}, own_tokens {point.own_tokens}: "
            "a share is in (0, 1], the others are positive"
        )
    for name in (point.own, point.beside or point.own):
        if name not in MEASURED:
            raise ConfigError(f"{name!r} cannot be measured: use one of {', '.join(MEASURED)}")
    if point.beside is not None and point.beside_tokens < 1:
        raise ConfigError(f"beside_tokens is {point.beside_tokens}: give the neighbour's tokens")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
