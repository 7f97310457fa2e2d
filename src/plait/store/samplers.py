"""Samplers: which weights each of a session's samplers draws from.

A sampler that lives pins its version's files: they were linked into ``path`` before the row was
written, so the retention of versions cannot take them. A freed sampler keeps its row, which tells
a late request apart from a foreign one.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.errors import NotFound
from plait.core.ids import RunId, TenantId
from plait.store.database import Database
from plait.store.schema import samplers, sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """One sampler: of a base model (no ``run_id``), or of a version of a run."""

    sampler_id: str
    session_id: str
    tenant_id: TenantId
    base_model: str
    model_path: str | None
    """The ``tinker://`` path that it was opened with, if one."""
    run_id: RunId | None
    version: int | None
    path: str
    """Where its adapter lies, relative to the state directory; empty for a base model."""
    inflight: bool
    """It follows newer versions."""
    created_at: float
    freed_at: float | None


class Samplers:
    """Repository of samplers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(
        self,
        sampler_id: str,
        *,
        session_id: str,
        tenant_id: TenantId,
        base_model: str,
        model_path: str | None = None,
        run_id: RunId | None = None,
        version: int | None = None,
        path: str = "",
        inflight: bool = False,
        now: float,
    ) -> SamplerRow:
        """A new sampler, or the original of that id as it stands."""
        row = SamplerRow(
            sampler_id=sampler_id,
            session_id=session_id,
            tenant_id=tenant_id,
            base_model=base_model,
            model_path=model_path,
            run_id=run_id,
            version=version,
            path=path,
            inflight=inflight,
            created_at=now,
            freed_at=None,
        )
        with self._database.write() as connection:
            original = _find(connection, sampler_id)
            if original is not None:
                return original
            connection.execute(
                samplers.insert().values(
                    **{name: getattr(row, name) for name in SamplerRow.__slots__}
                )
            )
            return row

    def follow(self, sampler_id: str, *, version: int, path: str) -> SamplerRow:
        """Let a sampler draw from another version from now on; NotFound."""
        with self._database.write() as connection:
            connection.execute(
                samplers.update()
                .where(samplers.c.sampler_id == sampler_id)
                .values(version=version, path=path)
            )
            return _get(connection, sampler_id)

    def free(self, sampler_id: str, *, now: float) -> None:
        """It draws no more; the first time counts. NotFound."""
        with self._database.write() as connection:
            _free(connection, samplers.c.sampler_id == sampler_id, now)
            _get(connection, sampler_id)

    def free_session(self, session_id: str, *, now: float) -> list[SamplerRow]:
        """Free all of a session's; those that were not free, whose files can go now."""
        query = samplers.select().where(
            samplers.c.session_id == session_id, samplers.c.freed_at.is_(None)
        )
        with self._database.write() as connection:
            found = [_row(f) for f in connection.execute(query.order_by(samplers.c.sampler_id))]
            _free(connection, samplers.c.session_id == session_id, now)
            return found

    def find(self, sampler_id: str) -> SamplerRow | None:
        """One sampler, or none."""
        with self._database.read() as connection:
            return _find(connection, sampler_id)

    def get(self, sampler_id: str) -> SamplerRow:
        """One sampler; NotFound."""
        with self._database.read() as connection:
            return _get(connection, sampler_id)

    def of_sessions(self, session_ids: Collection[str]) -> list[SamplerRow]:
        """The samplers of some sessions, the freed ones included, in order of opening."""
        return self._select(samplers.c.session_id.in_(session_ids))

    def live(self) -> list[SamplerRow]:
        """All that are not free, in order of opening: what a restart has to serve."""
        return self._select(samplers.c.freed_at.is_(None))

    def sessions_over(self) -> list[str]:
        """Sessions that have ended and left some that are not free."""
        query = (
            sa.select(samplers.c.session_id)
            .join(sessions, sessions.c.session_id == samplers.c.session_id)
            .where(samplers.c.freed_at.is_(None), sessions.c.ended_at.is_not(None))
        )
        with self._database.read() as connection:
            return sorted(connection.execute(query.distinct()).scalars())

    def _select(self, where: sa.ColumnElement[bool]) -> list[SamplerRow]:
        query = samplers.select().where(where)
        query = query.order_by(samplers.c.created_at, samplers.c.sampler_id)
        with self._database.read() as connection:
            return [_row(found) for found in connection.execute(query)]


def _free(connection: Connection, where: sa.ColumnElement[bool], now: float) -> None:
    connection.execute(
        samplers.update().where(where, samplers.c.freed_at.is_(None)).values(freed_at=now)
    )


def _find(connection: Connection, sampler_id: str) -> SamplerRow | None:
    found = connection.execute(
        samplers.select().where(samplers.c.sampler_id == sampler_id)
    ).one_or_none()
    return None if found is None else _row(found)


def _get(connection: Connection, sampler_id: str) -> SamplerRow:
    row = _find(connection, sampler_id)
    if row is None:
        raise NotFound(f"there is no sampler {sampler_id}: open one")
    return row


def _row(found: sa.Row[Any]) -> SamplerRow:
    return SamplerRow(**found._mapping)
