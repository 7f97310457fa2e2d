"""Co-location: what the policy is told and what it answers (JigsawRL §4.2 and §4.4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.core.ids import RunId, WorkerId
from plait.core.plan import Wait
from plait.core.substages import Substage


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """One worker's room."""

    worker_id: WorkerId
    memory_bytes: int
    """For everything that runs on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationView:
    """The sub-stages that run, are ready or follow soon, on the workers that the runs share."""

    workers: tuple[WorkerFacts, ...]
    substages: tuple[Substage, ...]
    """Running and ready ones have an empty ``after``; the others follow them."""
    running: tuple[str, ...] = ()
    """Keys of those that have begun. They may be given another share of compute, but not be
    stopped."""
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    """Memory of the running ones, which they keep to their end: a cache is resized rarely."""
    weights: Mapping[RunId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one sub-stage gets of its worker."""

    key: str
    compute: float
    """Share of the worker's compute, in (0, 1]; with a neighbour the two add up to at most 1."""
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Samples of one run's tail move from ``sources`` to ``target``."""

    run_id: RunId
    sources: tuple[WorkerId, ...]
    target: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationPlan:
    """Shares of all that is to run from now on until the next sub-stage ends; a ready one that is
    not named waits, with its reason."""

    shares: tuple[Share, ...] = ()
    merges: tuple[Merge, ...] = ()
    waits: tuple[Wait, ...] = ()
    predicted_s: float = 0.0
    """Length of the critical path that was predicted for it."""
