"""Sensitivity: how far a result moves with 30 % less or more of a constant of the cost or slowdown
model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from benchmarks.sim.told import rounded
from plait.profiles.slowdown import Analytic
from plait.sim.costs.attained import NAMES
from plait.sim.costs.roofline import costs_of
from plait.sim.world import CostsOf

BY = 0.3
SLOWDOWNS = tuple(field.name for field in fields(Analytic))
LORA_ONLY = ("adapter_layer_s",)
"""Of no weight where there are no adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What a simulation believes about time."""

    factors: Mapping[str, float] = field(default_factory=dict)
    """On the committed constants of the roofline."""
    slowdown: Analytic = field(default_factory=Analytic)

    @property
    def costs_of(self) -> CostsOf:
        return partial(costs_of, constants=self.factors)


COMMITTED = Models()
LEAST = 5e-4
"""Relative changes below it are none."""


def names(*, slowdown: bool = True, lora: bool = False) -> tuple[str, ...]:
    """Of the constants. ``slowdown``: the slowdown model's too; ``lora``: adapters' too."""
    found = tuple(name for name in NAMES if lora or name not in LORA_ONLY)
    return found + (tuple(f"slowdown.{name}" for name in SLOWDOWNS) if slowdown else ())


def varied(constants: Iterable[str]) -> Iterator[tuple[str, Models, Models]]:
    """Each constant's name, and the models with 30 % less and 30 % more of it."""
    for constant in constants:
        model, dot, name = constant.partition(".")
        if not dot:
            yield constant, *(Models(factors={model: f}) for f in (1.0 - BY, 1.0 + BY))
            continue
        value = getattr(COMMITTED.slowdown, name)
        less, more = (
            Models(slowdown=replace(COMMITTED.slowdown, **{name: value * factor}))
            for factor in (1.0 - BY, 1.0 + BY)
        )
        yield constant, less, more


def effects(
    measure: Callable[[Models], float], constants: Iterable[str] | None = None
) -> dict[str, list[float]]:
    """By constant: what ``measure`` gives with 30 % less and with 30 % more of it, the one that
    moves it most first. Constants that move nothing are left out. All but adapters' by default."""
    base = measure(COMMITTED)
    found = {}
    for name, less, more in varied(names() if constants is None else constants):
        ends = [measure(less), measure(more)]
        if any(abs(end - base) > 1e-9 for end in ends):
            found[name] = ends
    return dict(sorted(found.items(), key=lambda item: -max(abs(e - base) for e in item[1])))


def changes(measure: Callable[[Models], float], constants: Iterable[str]) -> dict[str, Any]:
    """The same as relative changes, with what moves nothing."""
    constants = tuple(constants)
    base = measure(COMMITTED)
    found = {
        name: [end / base - 1.0 for end in ends]
        for name, ends in effects(measure, constants).items()
    }
    moved = {name: ends for name, ends in found.items() if max(map(abs, ends)) >= LEAST}
    return {
        "of": rounded(base),
        "most": next(iter(moved), ""),
        "change at -30 % and +30 %": {name: rounded(ends, 3) for name, ends in moved.items()},
        "no change": [name for name in constants if name not in moved],
    }
