"""Sessions: the clients' sessions, from opening to the first reason for which one ended.

Heartbeats are not here: they come every ten seconds and say nothing that outlives the process.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.errors import NotFound, StoreError
from plait.core.ids import TenantId
from plait.store.database import Database
from plait.store.rows import Json
from plait.store.schema import sessions
from plait.store.tenants import ensure_tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One client session."""

    session_id: str
    tenant_id: TenantId
    told: Json
    """What the client said of itself: tags, user_metadata, sdk_version, display_name."""
    project_id: str | None
    created_at: float
    ended_at: float | None
    reason: str
    detail: str


class Sessions:
    """Repository of client sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(
        self,
        session_id: str,
        *,
        tenant_id: TenantId,
        told: Json,
        project_id: str | None = None,
        now: float,
    ) -> SessionRow:
        """A new session, and its tenant if new; StoreError if the id is taken."""
        row = SessionRow(
            session_id=session_id,
            tenant_id=tenant_id,
            told=told,
            project_id=project_id,
            created_at=now,
            ended_at=None,
            reason="",
            detail="",
        )
        with self._database.write() as connection:
            if _find(connection, session_id) is not None:
                raise StoreError(f"there is a session {session_id} already: choose another id")
            ensure_tenant(connection, tenant_id, now)
            connection.execute(
                sessions.insert().values(
                    session_id=session_id,
                    tenant_id=tenant_id,
                    told=told,
                    project_id=project_id,
                    created_at=now,
                    ended_at=None,
                    reason="",
                    detail="",
                )
            )
        return row

    def finish(self, session_id: str, *, reason: str, detail: str = "", now: float) -> SessionRow:
        """End a session; one that has ended stays as it ended. NotFound."""
        with self._database.write() as connection:
            connection.execute(
                sessions.update()
                .where(sessions.c.session_id == session_id, sessions.c.ended_at.is_(None))
                .values(ended_at=now, reason=reason, detail=detail)
            )
            return _get(connection, session_id)

    def find(self, session_id: str) -> SessionRow | None:
        """One session, or none."""
        with self._database.read() as connection:
            return _find(connection, session_id)

    def get(self, session_id: str) -> SessionRow:
        """One session; NotFound."""
        with self._database.read() as connection:
            return _get(connection, session_id)

    def live(self) -> list[SessionRow]:
        """Sessions that have not ended, in order of opening."""
        return self._select(sessions.select().where(sessions.c.ended_at.is_(None)))

    def of_tenant(
        self, tenant_id: TenantId, *, limit: int | None = None, offset: int = 0
    ) -> list[SessionRow]:
        """A tenant's sessions, newest first."""
        query = sessions.select().where(sessions.c.tenant_id == tenant_id)
        return self._select(query, newest_first=True, limit=limit, offset=offset)

    def n_of_tenant(self, tenant_id: TenantId) -> int:
        """How many sessions a tenant has or had."""
        query = sa.select(sa.func.count()).where(sessions.c.tenant_id == tenant_id)
        with self._database.read() as connection:
            return int(connection.execute(query).scalar_one())

    def _select(
        self,
        query: sa.Select[Any],
        *,
        newest_first: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[SessionRow]:
        order = (sessions.c.created_at, sessions.c.session_id)
        query = query.order_by(*(c.desc() for c in order) if newest_first else order)
        query = query.limit(limit).offset(offset)
        with self._database.read() as connection:
            return [_row(found) for found in connection.execute(query)]


def _find(connection: Connection, session_id: str) -> SessionRow | None:
    found = connection.execute(
        sessions.select().where(sessions.c.session_id == session_id)
    ).one_or_none()
    return None if found is None else _row(found)


def _get(connection: Connection, session_id: str) -> SessionRow:
    row = _find(connection, session_id)
    if row is None:
        raise NotFound(f"there is no session {session_id}: open one")
    return row


def _row(found: sa.Row[Any]) -> SessionRow:
    return SessionRow(**found._mapping)
