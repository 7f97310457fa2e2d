"""Views: what this door answers, as JSON. Times are ISO-8601 in UTC."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel

from plait.service.access import Tenant
from plait.service.limits import TenantLimits
from plait.store.keys import KeyRow

T = TypeVar("T")

MAX_OFFSET = 10**9
Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0, le=MAX_OFFSET)]

Status = Literal["queued", "running", "paused", "done", "failed", "cancelled"]


def iso(at: float) -> str:
    """A time on the wire."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def page(items: Sequence[T], limit: int, offset: int) -> Sequence[T]:
    """Some of a list."""
    return items[offset : offset + limit]


class JobView(BaseModel):
    """One job as it stands."""

    job_id: str
    run_id: str
    name: str
    model: str
    status: Status
    reason: str
    stage: str
    step: int
    steps: int | None
    reward: float | None
    created_at: str
    updated_at: str


class JobsView(BaseModel):
    """Jobs, newest first."""

    jobs: list[JobView]
    total: int


class SubmittedView(BaseModel):
    """The jobs of a job file."""

    jobs: list[JobView]


class MetricsView(BaseModel):
    """Rows of the job's steps and of its evaluations."""

    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]


class ArtifactView(BaseModel):
    """A file of a job that can be downloaded."""

    path: str
    size_bytes: int


class ArtifactsView(BaseModel):
    """All files of a job."""

    artifacts: list[ArtifactView]


class RunLineView(BaseModel):
    """One run: a job's, or a client's model."""

    run_id: str
    kind: Literal["job", "client"]
    name: str
    model: str
    stage: str
    step: int
    waiting_for: str
    updated_at: str


class RunsView(BaseModel):
    """Runs, newest first."""

    runs: list[RunLineView]
    total: int


class WhyView(BaseModel):
    """What a run waits for."""

    run_id: str
    stage: str
    waiting_for: str
    """A stable word (``kv_budget``, ``turn``, ``trainer_busy``, ``quota`` …); empty if it is being
    served, or has ended."""
    reason: str
    position: int | None
    """Place in the queue, from 1."""
    expected_s: float | None
    since_s: float | None
    """How long it has been at this stage."""


class CheckpointView(BaseModel):
    """A checkpoint of a client's model."""

    path: str
    kind: str
    run_id: str
    size_bytes: int
    created_at: str
    expires_at: str | None
    public: bool
    pinned: bool
    has_optimizer: bool


class CheckpointsView(BaseModel):
    """Checkpoints, newest first."""

    checkpoints: list[CheckpointView]
    total: int


class KeyView(BaseModel):
    """A key, without the key."""

    key_id: str
    tenant_id: str
    prefix: str
    label: str
    admin: bool
    created_at: str
    revoked_at: str | None


class KeysView(BaseModel):
    """A tenant's keys, oldest first, revoked ones too."""

    keys: list[KeyView]
    total: int


class IssuedView(KeyView):
    """A new key. ``key`` is shown this once."""

    key: str


class TenantView(BaseModel):
    """A tenant."""

    tenant_id: str
    name: str
    weight: float
    priority: int
    limits: TenantLimits
    disabled: bool
    created_at: str


class TenantsView(BaseModel):
    """All tenants."""

    tenants: list[TenantView]
    total: int


def key_values(row: KeyRow) -> dict[str, Any]:
    """Fields of ``KeyView``."""
    return {
        "key_id": row.key_id,
        "tenant_id": row.tenant_id,
        "prefix": row.prefix,
        "label": row.label,
        "admin": row.admin,
        "created_at": iso(row.created_at),
        "revoked_at": None if row.revoked_at is None else iso(row.revoked_at),
    }


def tenant_view(tenant: Tenant) -> TenantView:
    """A tenant on the wire."""
    return TenantView(
        tenant_id=tenant.tenant_id,
        name=tenant.name,
        weight=tenant.weight,
        priority=tenant.priority,
        limits=tenant.limits,
        disabled=tenant.disabled,
        created_at=iso(tenant.created_at),
    )
