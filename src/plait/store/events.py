"""Events: what happened, for whoever asks afterwards. Appended, read in order, pruned by age."""

from dataclasses import dataclass

import sqlalchemy as sa

from plait.core.ids import JobId, RunId, TenantId
from plait.store.database import Database
from plait.store.rows import Json
from plait.store.schema import events


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event. ``event_id`` rises."""

    event_id: int
    at: float
    kind: str
    tenant_id: TenantId | None
    run_id: RunId | None
    job_id: JobId | None
    detail: Json


class Events:
    """Repository of events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        kind: str,
        *,
        tenant_id: TenantId | None = None,
        run_id: RunId | None = None,
        job_id: JobId | None = None,
        detail: Json | None = None,
        now: float,
    ) -> int:
        """Append one; its id."""
        with self._database.write() as connection:
            done = connection.execute(
                events.insert().values(
                    at=now,
                    kind=kind,
                    tenant_id=tenant_id,
                    run_id=run_id,
                    job_id=job_id,
                    detail=detail or {},
                )
            )
            assert done.inserted_primary_key is not None
            return int(done.inserted_primary_key[0])

    def after(
        self,
        event_id: int = 0,
        *,
        tenant_id: TenantId | None = None,
        run_id: RunId | None = None,
        job_id: JobId | None = None,
        limit: int = 1000,
    ) -> list[EventRow]:
        """Events later than ``event_id``, oldest first; of one tenant, run or job if given."""
        query = events.select().where(events.c.event_id > event_id)
        for column, wanted in (
            (events.c.tenant_id, tenant_id),
            (events.c.run_id, run_id),
            (events.c.job_id, job_id),
        ):
            if wanted is not None:
                query = query.where(column == wanted)
        query = query.order_by(events.c.event_id).limit(limit)
        with self._database.read() as connection:
            return [EventRow(**found._mapping) for found in connection.execute(query)]

    def prune(self, *, before: float, limit: int = 1000) -> int:
        """Forget what happened before a time, the oldest first; how many: fewer than ``limit`` when
        there is no more."""
        oldest = sa.select(events.c.event_id).order_by(events.c.event_id).limit(limit)
        old = events.delete().where(
            events.c.event_id.in_(oldest.scalar_subquery()), events.c.at < before
        )
        with self._database.write() as connection:
            return int(connection.execute(old).rowcount)
