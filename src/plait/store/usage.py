"""Usage: what each tenant and each of its runs has cost, by day and kind of work.

Sums only; they never fall. Days are UTC's. Work that belongs to no run (samples of a base model)
is on the tenant's account with an empty run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from plait.core.ids import RunId, TenantId
from plait.store.database import Database
from plait.store.schema import usage_days

NO_RUN = RunId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """One addition: ``kind`` is the operation's (``sample``, ``forward_backward``, …)."""

    kind: str
    device_s: float
    tokens: int
    n: int = 1
    """Operations that it sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What was used in one kind of work: on a day, or in all (``day`` is empty)."""

    day: str
    tenant_id: TenantId
    run_id: RunId
    kind: str
    n: int
    device_s: float
    tokens: int


_SUMS = tuple(
    sa.func.sum(column).label(column.name)
    for column in (usage_days.c.n, usage_days.c.device_s, usage_days.c.tokens)
)


class Usage:
    """Repository of the usage ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def charge(
        self, tenant_id: TenantId, entries: Sequence[tuple[RunId, Used]], *, now: float
    ) -> None:
        """Add what a tenant's runs (or ``NO_RUN``) used since the last time: all or nothing."""
        with self._database.write() as connection:
            for run_id, used in entries:
                add_usage(connection, tenant_id, run_id, used, now)

    def of_tenant(self, tenant_id: TenantId) -> list[UsageRow]:
        """What all runs of a tenant have used in all, by run and kind."""
        key = (usage_days.c.tenant_id, usage_days.c.run_id, usage_days.c.kind)
        query = sa.select(*key, *_SUMS).where(usage_days.c.tenant_id == tenant_id)
        with self._database.read() as connection:
            found = connection.execute(query.group_by(*key).order_by(*key))
            return [_total(dict(row._mapping)) for row in found]

    def days(self, tenant_id: TenantId, *, since: str = "", until: str = "9") -> list[UsageRow]:
        """A tenant's ledger by day (``2026-01-31``, both ends included), run and kind."""
        query = usage_days.select().where(
            usage_days.c.tenant_id == tenant_id,
            usage_days.c.day >= since,
            usage_days.c.day <= until,
        )
        query = query.order_by(usage_days.c.day, usage_days.c.run_id, usage_days.c.kind)
        with self._database.read() as connection:
            return [UsageRow(**found._mapping) for found in connection.execute(query)]


def day_of(now: float) -> str:
    """The day, in UTC, that a time belongs to."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def add_usage(
    connection: Connection, tenant_id: TenantId, run_id: RunId, used: Used, now: float
) -> None:
    """Add inside a transaction that is open already."""
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(usage_days)
    there = usage_days.c
    connection.execute(
        insert.values(
            day=day_of(now),
            tenant_id=tenant_id,
            run_id=run_id,
            kind=used.kind,
            n=used.n,
            device_s=used.device_s,
            tokens=used.tokens,
        ).on_conflict_do_update(
            index_elements=[there.day, there.tenant_id, there.run_id, there.kind],
            set_={
                "n": there.n + used.n,
                "device_s": there.device_s + used.device_s,
                "tokens": there.tokens + used.tokens,
            },
        )
    )


def _total(found: dict[str, Any]) -> UsageRow:
    return UsageRow(**{**found, "day": "", "n": int(found["n"]), "tokens": int(found["tokens"])})
