"""The policy protocols: ``decide(view, state, now) -> (plan, state)``, pure.

A policy reads no clock, draws no random number and keeps nothing between calls but ``state``, which
is JSON-serialisable. The runtime and the simulator call the same objects; every call is traced with
its inputs and replays exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from plait.core.placement import PlacementPlan, PlacementView
from plait.core.plan import AdmissionPlan, DispatchPlan, HomePlan, MovesPlan, ResidencyPlan
from plait.core.view import AdmissionView, DispatchView, HomeView, MovesView, ToolWaitView

State = dict[str, Any]
"""Policy state: JSON values only."""


class Admission(Protocol):
    """Which runs may roll out (MARLaaS §4.3)."""

    @property
    def name(self) -> str:
        """The decision's own name, for the trace."""
        ...

    def decide(
        self, view: AdmissionView, state: State, now: float
    ) -> tuple[AdmissionPlan, State]: ...


class Dispatch(Protocol):
    """Which training-side operation runs next (MARLaaS §4.2, PlexRL request scheduling)."""

    @property
    def name(self) -> str:
        """The decision's own name, for the trace."""
        ...

    def decide(
        self, view: DispatchView, state: State, now: float
    ) -> tuple[DispatchPlan, State]: ...


class Residency(Protocol):
    """What becomes of the cache of a sample that waits for a tool."""

    @property
    def name(self) -> str:
        """The decision's own name, for the trace."""
        ...

    def decide(
        self, view: ToolWaitView, state: State, now: float
    ) -> tuple[ResidencyPlan, State]: ...


class Home(Protocol):
    """Which training worker does a run's updates."""

    @property
    def name(self) -> str:
        """The decision's own name, for the trace."""
        ...

    def decide(self, view: HomeView, state: State, now: float) -> tuple[HomePlan, State]: ...


class Moves(Protocol):
    """Which samples under way go on at another rollout worker (JigsawRL, tail migration)."""

    @property
    def name(self) -> str:
        """The decision's own name, for the trace."""
        ...

    def decide(self, view: MovesView, state: State, now: float) -> tuple[MovesPlan, State]: ...


class Placement(Protocol):
    """Which node group a full-weight run gets (PlexRL placement)."""

    @property
    def name(self) -> str:
        """The decision's own name, for the trace."""
        ...

    def decide(
        self, view: PlacementView, state: State, now: float
    ) -> tuple[PlacementPlan, State]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A complete way of sharing one machine: what ``plait run --policy NAME`` selects."""

    name: str
    admission: Admission
    dispatch: Dispatch
    residency: Residency
    home: Home
    moves: Moves
    topology: Literal["disaggregated", "collocated"] = "disaggregated"
    """Rollout and training in two worker processes, or in one that alternates."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What it was made with besides its name: JSON values, so that it can be made again."""
