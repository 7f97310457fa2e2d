"""Sensitivity: every constant of the cost and slowdown models by 30 % up and down."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from plait.profiles import slowdown as slowdowns
from plait.profiles.slowdown import Analytic
from plait.sim.costs.attained import NAMES
from plait.sim.costs.roofline import costs_of
from plait.sim.worker import SlowdownModel
from plait.sim.world import CostsOf

BY = 0.3
SLOWDOWN_NAMES = ("compute_exponent", "contention", "memory_exponent")
"""Fields of the analytic slowdown model."""
MODULE_NAMES = ("FULL_TOKENS", "MATRIX_TRAFFIC", "TRAFFIC")
"""Constants of its module, shared by policies and simulator."""
NO_CONSTANTS = ("collective_s", "network_collective_s", "adapter_layer_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What a simulation believes about time, and by which factors it differs from the committed
    models."""

    factors: Mapping[str, float] = field(default_factory=dict)
    """On constants of the roofline."""
    slowdown: SlowdownModel = Analytic()

    @property
    def costs_of(self) -> CostsOf:
        return partial(costs_of, constants=self.factors)
