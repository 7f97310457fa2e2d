"""Checkpoints: named versions that a user may return to; a pinned one is never collected.

A row goes before its directory does (``store.files``), so a row always has its directory. Which
are surplus is ``store.retention``'s to say.
"""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.errors import NotFound, RequestError
from plait.core.ids import RunId, TenantId
from plait.store.database import Database
from plait.store.rows import CheckpointRow, Json
from plait.store.runs import get_run
from plait.store.schema import checkpoints, runs


class Checkpoints:
    """Repository of checkpoints. Their directories belong to ``store.files``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(
        self,
        run_id: RunId,
        name: str,
        *,
        version: int,
        path: str,
        kind: str,
        pinned: bool = False,
        automatic: bool = False,
        has_optimizer: bool = True,
        size_bytes: int = 0,
        score: float | None = None,
        public: bool = False,
        expires_at: float | None = None,
        user_metadata: Json | None = None,
        now: float,
    ) -> CheckpointRow:
        """Record a checkpoint; one of the same name is replaced, unless it is pinned."""
        row = CheckpointRow(
            run_id=run_id,
            name=name,
            version=version,
            path=path,
            kind=kind,
            pinned=pinned,
            created_at=now,
            automatic=automatic,
            has_optimizer=has_optimizer,
            size_bytes=size_bytes,
            score=score,
            public=public,
            expires_at=expires_at,
            user_metadata=user_metadata or {},
        )
        with self._database.write() as connection:
            get_run(connection, run_id)
            _check_unpinned(connection, run_id, name)
            connection.execute(checkpoints.delete().where(_key(run_id, name)))
            connection.execute(
                checkpoints.insert().values(
                    **{field: getattr(row, field) for field in CheckpointRow.__slots__}
                )
            )
        return row

    def set_pinned(self, run_id: RunId, name: str, pinned: bool) -> None:
        """Pin or unpin; NotFound if there is none of that name."""
        self._update(run_id, name, pinned=pinned)

    def set_public(self, run_id: RunId, name: str, public: bool) -> None:
        """Let everybody read it, or its owner alone; NotFound."""
        self._update(run_id, name, public=public)

    def set_expiry(self, run_id: RunId, name: str, expires_at: float | None) -> None:
        """Let it expire at a time, or never; NotFound."""
        self._update(run_id, name, expires_at=expires_at)

    def delete_many(self, which: Iterable[tuple[RunId, str]]) -> list[CheckpointRow]:
        """Forget those that are there and not pinned, in one transaction; the rows forgotten,
        whose directories can go now."""
        gone = []
        with self._database.write() as connection:
            for run_id, name in which:
                row = _find(connection, run_id, name)
                if row is not None and not row.pinned:
                    connection.execute(checkpoints.delete().where(_key(run_id, name)))
                    gone.append(row)
        return gone

    def delete_expired(self, now: float) -> list[CheckpointRow]:
        """Forget those whose time is over, in one transaction, so that one which was given more
        time or another content meanwhile stays; as ``delete_many``."""
        with self._database.write():
            return self.delete_many([(row.run_id, row.name) for row in self.expired(now)])

    def find(self, run_id: RunId, name: str) -> CheckpointRow | None:
        """One checkpoint, or none."""
        with self._database.read() as connection:
            return _find(connection, run_id, name)

    def of_tenant(self, tenant_id: TenantId) -> list[CheckpointRow]:
        """The checkpoints of all runs of a tenant, newest first."""
        query = checkpoints.select().join(runs).where(runs.c.tenant_id == tenant_id)
        return self._select(
            query.order_by(
                checkpoints.c.created_at.desc(), checkpoints.c.run_id, checkpoints.c.name
            )
        )

    def n_by_run(self, tenant_id: TenantId) -> dict[RunId, int]:
        """How many checkpoints a tenant has asked for of each of its runs that has any."""
        query = (
            sa.select(checkpoints.c.run_id, sa.func.count())
            .select_from(checkpoints.join(runs))
            .where(runs.c.tenant_id == tenant_id, checkpoints.c.automatic.is_(False))
            .group_by(checkpoints.c.run_id)
        )
        with self._database.read() as connection:
            return {RunId(run_id): int(n) for run_id, n in connection.execute(query)}

    def bytes_of_tenant(self, tenant_id: TenantId, *, now: float) -> int:
        """What those take on the disk that it has asked for and that have not expired."""
        expires_at = checkpoints.c.expires_at
        query = (
            sa.select(sa.func.coalesce(sa.func.sum(checkpoints.c.size_bytes), 0))
            .select_from(checkpoints.join(runs))
            .where(
                runs.c.tenant_id == tenant_id,
                checkpoints.c.automatic.is_(False),
                sa.or_(expires_at.is_(None), expires_at > now, checkpoints.c.pinned),
            )
        )
        with self._database.read() as connection:
            return int(connection.execute(query).scalar_one())

    def expired(self, now: float) -> list[CheckpointRow]:
        """Those whose time is over and that nobody has pinned."""
        query = checkpoints.select().where(
            checkpoints.c.expires_at.is_not(None),
            checkpoints.c.expires_at <= now,
            checkpoints.c.pinned.is_(False),
        )
        return self._select(query.order_by(checkpoints.c.run_id, checkpoints.c.name))

    def _select(self, query: sa.Select[Any]) -> list[CheckpointRow]:
        with self._database.read() as connection:
            return [CheckpointRow(**found._mapping) for found in connection.execute(query)]

    def _update(self, run_id: RunId, name: str, **values: Any) -> None:
        with self._database.write() as connection:
            done = connection.execute(
                checkpoints.update().where(_key(run_id, name)).values(**values)
            )
            if done.rowcount == 0:
                raise NotFound(f"run {run_id} has no checkpoint {name}: list its checkpoints")

    def list(self, run_id: RunId) -> list[CheckpointRow]:
        """A run's checkpoints, oldest version first."""
        query = checkpoints.select().where(checkpoints.c.run_id == run_id)
        return self._select(query.order_by(checkpoints.c.version, checkpoints.c.name))


def _check_unpinned(connection: Connection, run_id: RunId, name: str) -> None:
    row = _find(connection, run_id, name)
    if row is not None and row.pinned:
        raise RequestError(f"checkpoint {name} of run {run_id} is pinned: unpin it first")


def _find(connection: Connection, run_id: RunId, name: str) -> CheckpointRow | None:
    found = connection.execute(checkpoints.select().where(_key(run_id, name))).one_or_none()
    return None if found is None else CheckpointRow(**found._mapping)


def _key(run_id: RunId, name: str) -> sa.ColumnElement[bool]:
    return sa.and_(checkpoints.c.run_id == run_id, checkpoints.c.name == name)
