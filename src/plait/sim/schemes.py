"""Scheme: a complete way of sharing a cluster, made of the policies that the live runtime runs.

``sharing`` (``policies.registry.make``) drives LoRA runs unchanged. Full-weight runs get their
devices by ``placement`` and use them by ``full``:

*isolated*: devices of their own. *shared-train*: rollout devices of their own, one pool to train on
per node group, run by ``dispatch`` (PlexRL). *multiplexed*: all runs of a node group share all its
devices, divided by ``colocation`` (JigsawRL).
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from plait.core.colocation import ColocationPlan, ColocationView, Share
from plait.core.merging import BalancePlan, BalanceView, MergePlan, MergeView
from plait.core.placement import Binding, PlacementPlan, PlacementView
from plait.core.plan import Wait
from plait.policies import registry
from plait.policies.dispatch import FifoDispatch
from plait.policies.protocol import Dispatch, Sharing, State
from plait.sim.spec import Pipeline

FullTopology = Literal["isolated", "shared-train", "multiplexed"]


class Placement(Protocol):
    """Which node group a run gets."""

    @property
    def name(self) -> str: ...

    def decide(
        self, view: PlacementView, state: State, now: float
    ) -> tuple[PlacementPlan, State]: ...


class Colocation(Protocol):
    """Which sub-stages share a worker, and how it is divided."""

    @property
    def name(self) -> str: ...

    def decide(
        self, view: ColocationView, state: State, now: float
    ) -> tuple[ColocationPlan, State]: ...


class Balancing(Protocol):
    """How a run's samples are divided over its workers."""

    @property
    def name(self) -> str: ...

    def decide(self, view: BalanceView, state: State, now: float) -> tuple[BalancePlan, State]: ...


class Merging(Protocol):
    """Whether one run's tails move together."""

    @property
    def name(self) -> str: ...

    def decide(self, view: MergeView, state: State, now: float) -> tuple[MergePlan, State]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFit:
    """Each run in order of arrival to the first group with so many free devices; nobody overtakes.

    The isolated baseline.
    """

    name: str = "first-fit"

    def decide(self, view: PlacementView, state: State, now: float) -> tuple[PlacementPlan, State]:
        """Bind until the first that does not fit."""
        free = {group.group_id: group.n_devices for group in view.groups}
        bind: list[Binding] = []
        waits: list[Wait] = []
        for run in sorted(view.waiting, key=lambda r: r.order):
            group_id = next((g for g, n in free.items() if n >= run.n_devices), None)
            if waits or group_id is None:
                detail = f"needs {run.n_devices} devices"
                waits.append(Wait(run_id=run.run_id, reason="devices", detail=detail))
                continue
            free[group_id] -= run.n_devices
            bind.append(Binding(run_id=run.run_id, group_id=group_id, phase_s=0.0))
        return PlacementPlan(bind=tuple(bind), waits=tuple(waits)), state


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """All runs on the first group that is large enough for each: who shares is given, and how they
    share is the co-location policy's."""

    name: str = "together"

    def decide(self, view: PlacementView, state: State, now: float) -> tuple[PlacementPlan, State]:
        """Bind all."""
        bind: list[Binding] = []
        waits: list[Wait] = []
        for run in sorted(view.waiting, key=lambda r: r.order):
            fit = [g.group_id for g in view.groups if g.n_devices >= run.n_devices]
            if fit:
                bind.append(Binding(run_id=run.run_id, group_id=fit[0], phase_s=0.0))
            else:
                detail = f"needs {run.n_devices} devices"
                waits.append(Wait(run_id=run.run_id, reason="devices", detail=detail))
        return PlacementPlan(bind=tuple(bind), waits=tuple(waits)), state


@dataclass(frozen=True, slots=True, kw_only=True)
class Serial:
    """One sub-stage at a time on a worker, as they come; what runs goes on."""

    name: str = "serial"

    def decide(
        self, view: ColocationView, state: State, now: float
    ) -> tuple[ColocationPlan, State]:
        """The running one, else the first that is ready, gets the whole worker."""
        memory = {facts.worker_id: facts.memory_bytes for facts in view.workers}
        running = set(view.running)
        taken: set[str] = set()
        shares: list[Share] = []
        waits: list[Wait] = []
        ready = [s for s in view.substages if not s.after]
        for substage in sorted(ready, key=lambda s: s.key not in running):
            if not substage.kind.on_device:
                shares.append(Share(key=substage.key, compute=1.0, memory_bytes=0))
            elif substage.worker in taken:
                waits.append(Wait(run_id=substage.run_id, reason="turn"))
            else:
                taken.add(substage.worker)
                held = min(substage.memory_bytes, memory[substage.worker])
                shares.append(Share(key=substage.key, compute=1.0, memory_bytes=held))
        return ColocationPlan(shares=tuple(shares), waits=tuple(waits)), state


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """What is under test."""

    name: str
    sharing: Sharing
    placement: Placement = FirstFit()
    full: FullTopology = "isolated"
    lora: Literal["shared", "private"] = "shared"
    """``private``: LoRA runs are placed as full-weight ones are, each with its copy of the base."""
    side_by_side: bool = False
    """A shared base rolls out and trains on all of its devices at once, side by side, instead of on
    devices for one or the other."""
    pipeline: Pipeline | None = None
    """Of every job that is placed; ``None`` leaves it to the job."""
    rollout: Literal["own", "together"] | None = None
    """Of every job that is placed: on devices apart from training's, half of all where the job
    says nothing, or on the same ones; ``None`` leaves it to the job (``arranged``)."""
    dispatch: Dispatch = field(default_factory=FifoDispatch)
    """Of shared training pools."""
    colocation: Colocation = Serial()
    merging: Merging | None = None
    balancing: Balancing | None = None
    halves: Literal["swapped", "same"] = "swapped"
    """Multiplexed runs with devices for rollout and for training apart: whether every second one
    has them the other way round, so that one's training meets the other's rollout."""


def lora(policy: str = registry.DEFAULT, **options: object) -> Scheme:
    """The scheme of a live policy's name, for LoRA workloads."""
    return Scheme(name=policy, sharing=registry.make(policy, **options))


def isolated(*, private_lora: bool = True) -> Scheme:
    """Every job on devices of its own, first come, first served."""
    return Scheme(
        name="isolated",
        sharing=registry.make(registry.DEFAULT),
        lora="private" if private_lora else "shared",
    )
