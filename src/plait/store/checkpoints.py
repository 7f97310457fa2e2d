"""Checkpoints: named versions that a user may return to; a pinned one is never collected."""

import sqlalchemy as sa

from plait.core.errors import StoreError
from plait.core.ids import RunId
from plait.store.database import Database
from plait.store.rows import CheckpointRow
from plait.store.runs import get_run
from plait.store.schema import checkpoints


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
        )
        key = _key(run_id, name)
        with self._database.write() as connection:
            get_run(connection, run_id)
            query = sa.select(checkpoints.c.pinned).where(key)
            if connection.execute(query).scalar_one_or_none():
                raise StoreError(f"checkpoint {name} of run {run_id} is pinned: unpin it first")
            connection.execute(checkpoints.delete().where(key))
            connection.execute(
                checkpoints.insert().values(
                    run_id=run_id,
                    name=name,
                    version=version,
                    path=path,
                    kind=kind,
                    pinned=pinned,
                    created_at=now,
                )
            )
        return row

    def set_pinned(self, run_id: RunId, name: str, pinned: bool) -> None:
        """Pin or unpin; StoreError if there is none of that name."""
        with self._database.write() as connection:
            done = connection.execute(
                checkpoints.update().where(_key(run_id, name)).values(pinned=pinned)
            )
            if done.rowcount == 0:
                raise StoreError(f"run {run_id} has no checkpoint {name}")

    def delete(self, run_id: RunId, name: str) -> None:
        """Forget a checkpoint, before its directory is removed; StoreError if it is pinned."""
        with self._database.write() as connection:
            query = sa.select(checkpoints.c.pinned).where(_key(run_id, name))
            if connection.execute(query).scalar_one_or_none():
                raise StoreError(f"checkpoint {name} of run {run_id} is pinned: unpin it first")
            connection.execute(checkpoints.delete().where(_key(run_id, name)))

    def list(self, run_id: RunId) -> list[CheckpointRow]:
        """A run's checkpoints, oldest version first."""
        query = checkpoints.select().where(checkpoints.c.run_id == run_id)
        query = query.order_by(checkpoints.c.version, checkpoints.c.name)
        with self._database.read() as connection:
            return [CheckpointRow(**found._mapping) for found in connection.execute(query)]


def _key(run_id: RunId, name: str) -> sa.ColumnElement[bool]:
    return sa.and_(checkpoints.c.run_id == run_id, checkpoints.c.name == name)
