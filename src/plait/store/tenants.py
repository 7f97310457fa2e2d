"""Tenants: who shares the machine, with which weight, priority and limits.

Limits are stored as they are given; what they mean and who keeps them is ``service.limits``'.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.errors import NotFound
from plait.core.ids import TenantId
from plait.store.database import Database
from plait.store.rows import Json
from plait.store.schema import tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """One tenant."""

    tenant_id: TenantId
    name: str
    weight: float
    priority: int
    limits: Json
    disabled: bool
    created_at: float


class Tenants:
    """Repository of tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ensure(self, tenant_id: TenantId, *, now: float) -> TenantRow:
        """The tenant, made with weight 1 and no limits unless it exists."""
        with self._database.write() as connection:
            return ensure_tenant(connection, tenant_id, now)

    def update(
        self,
        tenant_id: TenantId,
        *,
        name: str | None = None,
        weight: float | None = None,
        priority: int | None = None,
        limits: Json | None = None,
        disabled: bool | None = None,
    ) -> TenantRow:
        """Change what is given; NotFound."""
        given = {
            "name": name,
            "weight": weight,
            "priority": priority,
            "limits": limits,
            "disabled": disabled,
        }
        values: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        with self._database.write() as connection:
            if values:
                connection.execute(
                    tenants.update().where(tenants.c.tenant_id == tenant_id).values(**values)
                )
            return _get(connection, tenant_id)

    def find(self, tenant_id: TenantId) -> TenantRow | None:
        """One tenant, or none."""
        with self._database.read() as connection:
            return find_tenant(connection, tenant_id)

    def get(self, tenant_id: TenantId) -> TenantRow:
        """One tenant; NotFound."""
        with self._database.read() as connection:
            return _get(connection, tenant_id)

    def list(self) -> list[TenantRow]:
        """All tenants, in order of creation."""
        query = tenants.select().order_by(tenants.c.created_at, tenants.c.tenant_id)
        with self._database.read() as connection:
            return [_row(found) for found in connection.execute(query)]


def ensure_tenant(connection: Connection, tenant_id: TenantId, now: float) -> TenantRow:
    """Make the tenant unless it exists, inside a transaction that is open already."""
    row = find_tenant(connection, tenant_id)
    if row is None:
        row = TenantRow(
            tenant_id=tenant_id,
            name=tenant_id,
            weight=1.0,
            priority=0,
            limits={},
            disabled=False,
            created_at=now,
        )
        connection.execute(
            tenants.insert().values(**{name: getattr(row, name) for name in TenantRow.__slots__})
        )
    return row


def find_tenant(connection: Connection, tenant_id: TenantId) -> TenantRow | None:
    """One tenant, inside a transaction that is open already."""
    found = connection.execute(
        tenants.select().where(tenants.c.tenant_id == tenant_id)
    ).one_or_none()
    return None if found is None else _row(found)


def _get(connection: Connection, tenant_id: TenantId) -> TenantRow:
    row = find_tenant(connection, tenant_id)
    if row is None:
        raise NotFound(f"there is no tenant {tenant_id}: create it first")
    return row


def _row(found: sa.Row[Any]) -> TenantRow:
    return TenantRow(**found._mapping)
