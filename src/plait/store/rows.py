"""Rows: what the store answers. Frozen values; JSON columns arrive as plain dictionaries."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from plait.core.ids import RunId, TenantId

Json = dict[str, Any]
"""A JSON object. Numbers that are not finite are stored as null: JSON has no word for them."""


class RunStatus(StrEnum):
    """Where a run stands for good; the passing stage of a step is not kept here."""

    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True when the run takes no further mutation."""
        return self in (RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED)


class MutationStatus(StrEnum):
    """A mutation is accepted once and ends once."""

    ACCEPTED = "accepted"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run and the progress that its controller saved with the last commit."""

    run_id: RunId
    tenant_id: TenantId
    name: str
    spec: Json
    status: RunStatus
    reason: str
    progress: Json
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One committed version and the mutation that made it."""

    run_id: RunId
    version: int
    seq: int
    path: str
    """Relative to the launch directory; absolute, and of no use after a move, in older stores."""
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationRow:
    """One mutation of the log."""

    run_id: RunId
    seq: int
    kind: str
    status: MutationStatus
    result: Json
    error: str
    accepted_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Answer to ``accept``: new, or the original with what became of it."""

    new: bool
    status: MutationStatus
    result: Json = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One named checkpoint; a pinned one is never collected."""

    run_id: RunId
    name: str
    """Unique in its run. A client's begins with its kind, as on the wire: ``weights/a``."""
    version: int
    path: str
    kind: str
    pinned: bool
    created_at: float
    automatic: bool
    """Made by the schedule, so the schedule's bounds may remove it; else a user asked for it."""
    has_optimizer: bool
    size_bytes: int
    score: float | None
    """The higher, the better: what keep-best goes by."""
    public: bool
    expires_at: float | None
    user_metadata: Json
