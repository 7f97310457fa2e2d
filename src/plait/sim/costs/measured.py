"""Measured: costs from a profile of real times, in place of whatever of the roofline it covers.

A decode step is interpolated: linearly in the cached tokens between those measured at one number of
rows, then linearly in the rows. Beyond the last point the last slope goes on (a falling one does
not); before the first, the first value holds. What a profile leaves out comes from the base.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError
from plait.sim.costs.protocol import Costs

VERSION = 1
"""Of the file. A file of another version is refused: its numbers may mean something else."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """Time of one forward step."""

    rows: int
    context: int
    """Tokens in the cache in all."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured of one model on one slice; ``None``: not measured."""

    model: str
    device: str
    n: int = 1
    decode: tuple[DecodePoint, ...] = ()
    adapter_step_s: float | None = None
    """What a decode step takes longer where adapters are applied."""
    prefill_tokens_per_s: float | None = None
    train_tokens_per_s: float | None = None
    train_overhead_s: float | None = None
    """Of each update, however small; 0 where it is not measured but the rate is."""
    reference_tokens_per_s: float | None = None
    sync_s: float | None = None
    offload_s: float | None = None
    load_s: float | None = None


RATES = ("prefill_tokens_per_s", "train_tokens_per_s", "reference_tokens_per_s")
TIMES = ("adapter_step_s", "train_overhead_s", "sync_s", "offload_s", "load_s")


class Measured:
    """Costs of a profile, over those of a base for what it leaves out."""

    def __init__(self, profile: Profile, base: Costs) -> None:
        self._profile, self._base = profile, base
        by_rows: dict[int, dict[int, float]] = {}
        for point in profile.decode:
            by_rows.setdefault(point.rows, {})[point.context] = point.seconds
        self._rows = sorted(by_rows)
        self._lines: list[Points] = [sorted(by_rows[rows].items()) for rows in self._rows]

    @property
    def peak_flops(self) -> float:
        return self._base.peak_flops

    @property
    def memory_bytes(self) -> int:
        return self._base.memory_bytes

    @property
    def weight_bytes(self) -> int:
        return self._base.weight_bytes

    @property
    def train_bytes(self) -> int:
        return self._base.train_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return self._base.kv_bytes_per_token

    def decode_s(self, n_rows: int, context_tokens: int, n_adapters: int = 0) -> float:
        if not self._lines or n_rows < 1:
            return self._base.decode_s(n_rows, context_tokens, n_adapters)
        place = min(max(bisect_right(self._rows, n_rows), 1), len(self._rows) - 1)
        near = slice(max(0, place - 1), place + 1)
        points = [
            (float(rows), interpolate(line, context_tokens))
            for rows, line in zip(self._rows[near], self._lines[near], strict=True)
        ]
        step_s = interpolate(points, n_rows)
        if n_adapters:
            more_s = self._profile.adapter_step_s
            if more_s is None:
                more_s = self._base.decode_s(n_rows, context_tokens, n_adapters)
                more_s -= self._base.decode_s(n_rows, context_tokens)
            step_s += more_s
        return step_s

    def prefill_s(
        self, n_tokens: int, context_tokens: int = 0, n_adapters: int = 0, n_samples: int = 1
    ) -> float:
        if (rate := self._profile.prefill_tokens_per_s) is None:
            return self._base.prefill_s(n_tokens, context_tokens, n_adapters, n_samples)
        return n_tokens / rate

    def train_s(self, n_tokens: int, n_samples: int) -> float:
        if (rate := self._profile.train_tokens_per_s) is None:
            return self._base.train_s(n_tokens, n_samples)
        overhead_s = self._profile.train_overhead_s or 0.0
        return n_tokens / rate + overhead_s if n_tokens > 0 else 0.0

    def reference_s(self, n_tokens: int, n_samples: int = 1) -> float:
        if (rate := self._profile.reference_tokens_per_s) is None:
            return self._base.reference_s(n_tokens, n_samples)
        return n_tokens / rate

    def sync_s(self) -> float:
        seconds = self._profile.sync_s
        return self._base.sync_s() if seconds is None else seconds

    def offload_s(self) -> float:
        seconds = self._profile.offload_s
        return self._base.offload_s() if seconds is None else seconds

    def load_s(self) -> float:
        seconds = self._profile.load_s
        return self._base.load_s() if seconds is None else seconds

    def flops(self, n_forward: int, n_backward: int = 0) -> float:
        return self._base.flops(n_forward, n_backward)


def with_profiles(profiles: Sequence[Profile], base: Callable[..., Costs]) -> Callable[..., Costs]:
    """``base`` (``costs_of``, or one with constants), but measured where a profile is at hand."""
    known = {(p.model, p.device, p.n): p for p in profiles}

    def costs(model: str, device: str, n: int = 1, **more: Any) -> Costs:
        computed = base(model, device, n, **more)
        profile = known.get((model, device, n))
        return computed if profile is None else Measured(profile, computed)

    return costs


def interpolate(points: Points, x: float) -> float:
    """Linear between ``points`` (sorted by x); beyond the last its slope goes on if it rises."""
    x0, y0 = points[0]
    if x <= x0 or len(points) == 1:
        return y0
    i = min(bisect_right(points, x, key=lambda point: point[0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    if x > x1:
        return y1 + max(0.0, (y1 - y0) / (x1 - x0)) * (x - x1)
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def write_profile(profile: Profile, file: Path) -> None:
    """The profile as JSON."""
    file.write_text(json.dumps({"version": VERSION, **asdict(profile)}, indent=1) + "\n")


def read_profile(file: Path) -> Profile:
    """The profile in ``file``; ConfigError if it is of another version, or has a wrong number."""
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot read {file}: give a profile as plait profile writes it"
        ) from error
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise ConfigError(f"{file} is of version {version!r}, not {VERSION}: profile again")
    fields = {name: value for name, value in data.items() if name != "version"}
    try:
        points = tuple(DecodePoint(**point) for point in fields.pop("decode", ()))
        profile = Profile(decode=points, **fields)
        _check(profile)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{file} is no profile ({error}): profile again") from error
    return profile


def _check(profile: Profile) -> None:
    for point in profile.decode:
        _number("decode.rows", point.rows, above=0)
        _number("decode.context", point.context)
        _number("decode.seconds", point.seconds, above=0)
    for name in RATES:
        if (rate := getattr(profile, name)) is not None:
            _number(name, rate, above=0)
    for name in TIMES:
        if (seconds := getattr(profile, name)) is not None:
            _number(name, seconds)
    _number("n", profile.n, above=0)


def _number(name: str, value: Any, above: float | None = None) -> None:
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    if not right or value < 0 or (above is not None and value <= above):
        raise ValueError(f"{name} is {value!r}")
