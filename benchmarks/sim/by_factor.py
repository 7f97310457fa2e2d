"""By factor: how far a result moves when a constant of the cost model is 30 % larger or smaller."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from benchmarks.sim.told import rounded
from plait.sim.costs.attained import NAMES
from plait.sim.costs.roofline import costs_of
from plait.sim.world import CostsOf

BY = 0.3


def by_factor(result: Callable[[CostsOf], float], names: Iterable[str] = NAMES) -> dict[str, Any]:
    """The relative change of ``result`` by constant, most first, and what moves it most."""
    base = result(costs_of)
    moved: dict[str, list[float]] = {}
    for name in names:
        changed = (partial(costs_of, constants={name: f}) for f in (1.0 - BY, 1.0 + BY))
        moved[name] = [result(costs) / base - 1.0 for costs in changed]
    order = sorted(moved, key=lambda name: -max(map(abs, moved[name])))
    return {
        "of": rounded(base),
        "most": order[0] if order else "",
        "change at -30 % and +30 %": {
            name: rounded(moved[name], 3) for name in order if max(map(abs, moved[name])) >= 5e-4
        },
        "no change": [name for name in order if max(map(abs, moved[name])) < 5e-4],
    }
