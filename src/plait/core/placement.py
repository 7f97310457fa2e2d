"""Placement: what the policy is told and what it answers (PlexRL, cyclic horizon)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

from plait.core.ids import RunId, TenantId
from plait.core.plan import Wait

GroupId = NewType("GroupId", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A run's use of its node group over one step: share of the group's devices per bin."""

    period_s: float
    """Step time alone."""
    bins: tuple[float, ...]
    """Each in [0, 1], equally long, in the order of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRun:
    """A run that has its node group."""

    run_id: RunId
    demand: Demand | None
    """``None`` while it runs cold: its demand is not known yet and counts as all."""
    phase_s: float
    """When in the group's cycle its step begins."""
    host_bytes: int
    """Its state in the hosts' memory: this limits how many runs a group can hold."""
    slack_s: float
    """How much longer than alone a step may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A node group and who is on it."""

    group_id: GroupId
    n_devices: int
    device_bytes: int
    """Memory of one device."""
    host_bytes: int
    runs: tuple[PlacedRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run that needs a node group."""

    run_id: RunId
    tenant_id: TenantId
    order: int
    since_s: float
    n_devices: int
    """A group must have so many at least."""
    device_bytes: int
    """Of one device's memory, while it runs."""
    host_bytes: int
    slack_s: float
    demand: Demand | None = None
    """``None``: a new kind of run, which runs cold first."""
    weight: float = 1.0
    priority: int = 0
    expected_s: float = 0.0
    """How long the run is expected to last, alone; 0 where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementView:
    """The cluster's node groups and who waits for one."""

    groups: tuple[GroupFacts, ...]
    waiting: tuple[WaitingRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A run gets a node group for good, and its place in the group's cycle."""

    run_id: RunId
    group_id: GroupId
    phase_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """Runs that are bound now, and why the others wait."""

    bind: tuple[Binding, ...] = ()
    waits: Sequence[Wait] = ()
    shift: tuple[Binding, ...] = ()
    """Bound runs whose step should begin elsewhere in the cycle of their group from now on, since
    demand has drifted. They stay where they are bound."""
