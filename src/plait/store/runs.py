"""Runs: who owns them, what they are, how they stand, how far their controller got."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.errors import StoreError
from plait.core.ids import RunId, TenantId
from plait.store.database import Database
from plait.store.rows import Json, RunRow, RunStatus
from plait.store.schema import runs
from plait.store.tenants import ensure_tenant


class Runs:
    """Repository of runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, run_id: RunId, *, tenant_id: TenantId, name: str, spec: Json, now: float
    ) -> RunRow:
        """Make a run, and its tenant if new, or nothing at all.

        Asked again with the same arguments, answers the run as it stands; StoreError if the id is
        taken by a different one.
        """
        with self._database.write() as connection:
            row = find_run(connection, run_id)
            if row is None:
                ensure_tenant(connection, tenant_id, now)
                connection.execute(
                    runs.insert().values(
                        run_id=run_id,
                        tenant_id=tenant_id,
                        name=name,
                        spec=spec,
                        status=RunStatus.ACTIVE,
                        reason="",
                        progress={},
                        created_at=now,
                        updated_at=now,
                    )
                )
                row = find_run(connection, run_id)
                assert row is not None
            elif row.tenant_id != tenant_id:
                raise StoreError(f"run {run_id} exists with another owner: use another id")
            elif differs := _differences({"name": row.name, **row.spec}, {"name": name, **spec}):
                raise StoreError(
                    f"run {run_id} exists with other settings, {', '.join(differs)}: "
                    "ask for the same, or use another id"
                )
            return row

    def get(self, run_id: RunId) -> RunRow:
        """One run; StoreError if there is none of that id."""
        with self._database.read() as connection:
            return get_run(connection, run_id)

    def find(self, run_id: RunId) -> RunRow | None:
        """One run, or none."""
        with self._database.read() as connection:
            return find_run(connection, run_id)

    def list(self, *, tenant_id: TenantId | None = None) -> list[RunRow]:
        """All runs, or one tenant's, in order of creation."""
        query = runs.select().order_by(runs.c.created_at, runs.c.run_id)
        if tenant_id is not None:
            query = query.where(runs.c.tenant_id == tenant_id)
        with self._database.read() as connection:
            return [_row(found) for found in connection.execute(query)]

    def set_status(self, run_id: RunId, status: RunStatus, *, reason: str = "", now: float) -> None:
        """Record how the run stands and why."""
        self._update(run_id, status=status, reason=reason, updated_at=now)

    def save_progress(self, run_id: RunId, progress: Json, *, now: float) -> None:
        """Record the controller's progress outside a version's commit (an evaluation, a pause)."""
        self._update(run_id, progress=progress, updated_at=now)

    def _update(self, run_id: RunId, **values: Any) -> None:
        with self._database.write() as connection:
            done = connection.execute(runs.update().where(runs.c.run_id == run_id).values(**values))
            if done.rowcount == 0:
                raise _unknown(run_id)


def find_run(connection: Connection, run_id: RunId) -> RunRow | None:
    """One run, inside a transaction that is open already."""
    found = connection.execute(runs.select().where(runs.c.run_id == run_id)).one_or_none()
    return None if found is None else _row(found)


def get_run(connection: Connection, run_id: RunId) -> RunRow:
    """As ``find_run``; StoreError if there is none."""
    row = find_run(connection, run_id)
    if row is None:
        raise _unknown(run_id)
    return row


def _differences(there: Json, asked: Json, section: str = "") -> list[str]:
    """``lora.rank 8 (not 16)`` for each value that is another one than was asked for."""
    found = []
    for key in dict.fromkeys((*there, *asked)):
        old, new = there.get(key), asked.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{section}{key}.")
        elif old != new:
            found.append(f"{section}{key} {old} (not {new})")
    return found


def _unknown(run_id: RunId) -> StoreError:
    return StoreError(f"the store has no run {run_id}: create it first")


def _row(found: sa.Row[Any]) -> RunRow:
    values = dict(found._mapping)
    return RunRow(**{**values, "status": RunStatus(values["status"])})
