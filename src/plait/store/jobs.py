"""Jobs: job files that were submitted, and how each stands.

The spec is the file as it was checked; which run a job drives is known once it has begun.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.errors import NotFound, StoreError
from plait.core.ids import JobId, RunId, TenantId
from plait.store.database import Database
from plait.store.rows import Json
from plait.store.schema import jobs
from plait.store.tenants import ensure_tenant


class JobStatus(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True when it stays as it is."""
        return self in (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job."""

    job_id: JobId
    tenant_id: TenantId
    name: str
    spec: Json
    status: JobStatus
    reason: str
    run_id: RunId | None
    created_at: float
    updated_at: float


class Jobs:
    """Repository of jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(
        self, job_id: JobId, *, tenant_id: TenantId, name: str, spec: Json, now: float
    ) -> JobRow:
        """A new job, queued; the same again answers the original, StoreError for another one."""
        with self._database.write() as connection:
            row = _find(connection, job_id)
            if row is None:
                ensure_tenant(connection, tenant_id, now)
                connection.execute(
                    jobs.insert().values(
                        job_id=job_id,
                        tenant_id=tenant_id,
                        name=name,
                        spec=spec,
                        status=JobStatus.QUEUED,
                        reason="",
                        run_id=None,
                        created_at=now,
                        updated_at=now,
                    )
                )
                return _get(connection, job_id)
            if (row.tenant_id, row.name, row.spec) != (tenant_id, name, spec):
                raise StoreError(f"there is another job {job_id}: choose another id")
            return row

    def set_status(
        self,
        job_id: JobId,
        status: JobStatus,
        *,
        reason: str = "",
        run_id: RunId | None = None,
        now: float,
    ) -> JobRow:
        """Record how a job stands, and its run if given; one that has ended stays. NotFound."""
        values: dict[str, Any] = {"status": status, "reason": reason, "updated_at": now}
        if run_id is not None:
            values["run_id"] = run_id
        with self._database.write() as connection:
            if not _get(connection, job_id).status.ended:
                connection.execute(jobs.update().where(jobs.c.job_id == job_id).values(**values))
            return _get(connection, job_id)

    def revive(self, job_id: JobId, *, now: float) -> JobRow:
        """Queue a job that has failed once more; any other stays as it is. NotFound."""
        values = {"status": JobStatus.QUEUED, "reason": "", "updated_at": now}
        with self._database.write() as connection:
            if _get(connection, job_id).status is JobStatus.FAILED:
                connection.execute(jobs.update().where(jobs.c.job_id == job_id).values(**values))
            return _get(connection, job_id)

    def failed(self, *, since: float) -> list[JobRow]:
        """Jobs that have failed since."""
        query = jobs.select().where(jobs.c.status == JobStatus.FAILED, jobs.c.updated_at >= since)
        with self._database.read() as connection:
            return [_row(found) for found in connection.execute(query)]

    def find(self, job_id: JobId) -> JobRow | None:
        """One job, or none."""
        with self._database.read() as connection:
            return _find(connection, job_id)

    def get(self, job_id: JobId) -> JobRow:
        """One job; NotFound."""
        with self._database.read() as connection:
            return _get(connection, job_id)

    def named(self, tenant_id: TenantId, name: str) -> Sequence[JobRow]:
        """A tenant's jobs of one name, in order of submission."""
        query = jobs.select().where(jobs.c.tenant_id == tenant_id, jobs.c.name == name)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(jobs.c.created_at, jobs.c.job_id))
            return [_row(found) for found in rows]

    def list(self, *, tenant_id: TenantId | None = None, live: bool = False) -> list[JobRow]:
        """All jobs, or one tenant's, in order of submission; ``live``: those that have not
        ended."""
        query = jobs.select().order_by(jobs.c.created_at, jobs.c.job_id)
        if tenant_id is not None:
            query = query.where(jobs.c.tenant_id == tenant_id)
        if live:
            query = query.where(jobs.c.status.not_in([s for s in JobStatus if s.ended]))
        with self._database.read() as connection:
            return [_row(found) for found in connection.execute(query)]


def _find(connection: Connection, job_id: JobId) -> JobRow | None:
    found = connection.execute(jobs.select().where(jobs.c.job_id == job_id)).one_or_none()
    return None if found is None else _row(found)


def _get(connection: Connection, job_id: JobId) -> JobRow:
    row = _find(connection, job_id)
    if row is None:
        raise NotFound(f"there is no job {job_id}: submit it")
    return row


def _row(found: sa.Row[Any]) -> JobRow:
    values = dict(found._mapping)
    return JobRow(**{**values, "status": JobStatus(values["status"])})
