"""Merging and balancing: what the policies are told and what they answer (JigsawRL §4.3)."""

from dataclasses import dataclass

from plait.core.ids import RunId, WorkerId
from plait.core.substages import Substage


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """A run's tail on one worker, and what runs beside it there."""

    worker: WorkerId
    substage: Substage
    migrate_s: float
    """What moving its samples away costs: mostly computing their keys and values again."""
    beside: Substage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeView:
    """One run's tails on two or more workers."""

    run_id: RunId
    tails: tuple[Tail, ...]
    merged_s: tuple[float, ...]
    """T(K): time of all samples together on the worker of each tail, alone."""
    free_bytes: tuple[int, ...]
    """Room on each tail's worker for samples from elsewhere."""
    moved_bytes: tuple[int, ...]
    """What each tail's samples would take there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """Move all samples to ``target``, or none (``None``), and why."""

    target: WorkerId | None
    gain_s: float
    """ΔT of the best target; not positive where nothing is moved."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceView:
    """Work of one run that is to be divided over workers, some slowed down by a neighbour."""

    run_id: RunId
    total: int
    """Samples (or sequences) in all."""
    fixed_s: float
    per_sample_s: float
    """T(bs) = fixed_s + per_sample_s · bs."""
    slowdowns: tuple[float, ...]
    """Of each worker, 1 where nobody else is."""
    most: tuple[int, ...]
    """Samples that each worker has room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePlan:
    """Samples for each worker, adding up to the total."""

    samples: tuple[int, ...]
    predicted_s: float
