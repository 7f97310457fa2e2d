"""Usage: what each run has cost its tenant, by kind of work. Sums only; they never fall."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.ids import RunId, TenantId
from plait.store.database import Database
from plait.store.rows import UsageRow
from plait.store.runs import get_run
from plait.store.schema import usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """One addition: ``kind`` is the operation's (``sample``, ``forward_backward``, …)."""

    kind: str
    device_s: float
    tokens: int


class Usage:
    """Repository of the usage ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run_id: RunId, used: Used) -> None:
        """Add to a run's ledger, on its tenant's account."""
        with self._database.write() as connection:
            add_usage(connection, run_id, get_run(connection, run_id).tenant_id, used)

    def of_run(self, run_id: RunId) -> list[UsageRow]:
        """A run's ledger, by kind."""
        return self._select(usage.c.run_id == run_id)

    def of_tenant(self, tenant_id: TenantId) -> list[UsageRow]:
        """The ledgers of all runs of a tenant."""
        return self._select(usage.c.tenant_id == tenant_id)

    def _select(self, where: sa.ColumnElement[bool]) -> list[UsageRow]:
        query = usage.select().where(where).order_by(usage.c.run_id, usage.c.kind)
        with self._database.read() as connection:
            return [UsageRow(**found._mapping) for found in connection.execute(query)]


def add_usage(connection: Connection, run_id: RunId, tenant_id: TenantId, used: Used) -> None:
    """Add inside a transaction that is open already."""
    done = connection.execute(
        usage.update()
        .where(usage.c.run_id == run_id, usage.c.kind == used.kind)
        .values(device_s=usage.c.device_s + used.device_s, tokens=usage.c.tokens + used.tokens)
    )
    if done.rowcount == 0:
        connection.execute(
            usage.insert().values(
                run_id=run_id,
                tenant_id=tenant_id,
                kind=used.kind,
                device_s=used.device_s,
                tokens=used.tokens,
            )
        )
