"""Sensitivity: each constant of the cost and slowdown models by 30 % up and down."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial

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


def varied(*, slowdown: bool = True, lora: bool = False) -> Iterator[tuple[str, Models, Models]]:
    """Each constant's name, and the models with 30 % less and 30 % more of it.

    ``slowdown``: those of the slowdown model too.
    """
    for name in NAMES:
        if lora or name not in LORA_ONLY:
            yield name, Models(factors={name: 1.0 - BY}), Models(factors={name: 1.0 + BY})
    if not slowdown:
        return
    for name in SLOWDOWNS:
        value = getattr(COMMITTED.slowdown, name)
        less, more = (
            replace(COMMITTED.slowdown, **{name: value * factor}) for factor in (1.0 - BY, 1.0 + BY)
        )
        yield f"slowdown.{name}", Models(slowdown=less), Models(slowdown=more)


def effects(
    measure: Callable[[Models], float], *, slowdown: bool = True, lora: bool = False
) -> dict[str, list[float]]:
    """By constant: what ``measure`` gives with 30 % less and with 30 % more of it, the one that
    moves it most first. Constants that move nothing are left out."""
    base = measure(COMMITTED)
    found = {}
    for name, less, more in varied(slowdown=slowdown, lora=lora):
        ends = [measure(less), measure(more)]
        if any(abs(end - base) > 1e-9 for end in ends):
            found[name] = ends
    return dict(sorted(found.items(), key=lambda item: -max(abs(e - base) for e in item[1])))
