"""Losses: the custom losses of client sessions, as they were taken.

Invariants: ``(session_id, seq)`` is the idempotency key, and the same number again answers the
original; a session, and a tenant, has at most as many as the creator allows; what was taken is
never changed, and stays until ``forget``, as long as what names it can be carried out again.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.ids import TenantId
from plait.store.database import Database
from plait.store.schema import custom_losses, sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """One custom loss."""

    session_id: str
    seq: int
    tenant_id: TenantId
    loss: bytes
    created_at: float


class Losses:
    """Repository of custom losses."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        session_id: str,
        seq: int,
        *,
        tenant_id: TenantId,
        loss: bytes,
        most: int,
        most_of_tenant: int,
        now: float,
    ) -> LossRow | None:
        """Keep a loss, or the original of that number; None if the session has ``most``, or the
        tenant ``most_of_tenant``."""
        row = LossRow(
            session_id=session_id, seq=seq, tenant_id=tenant_id, loss=loss, created_at=now
        )
        bounds = (
            (custom_losses.c.session_id == session_id, most),
            (custom_losses.c.tenant_id == tenant_id, most_of_tenant),
        )
        with self._database.write() as connection:
            if (original := _find(connection, session_id, seq)) is not None:
                return original
            for of, bound in bounds:
                n = sa.select(sa.func.count()).select_from(custom_losses).where(of)
                if connection.execute(n).scalar_one() >= bound:
                    return None
            values = {name: getattr(row, name) for name in LossRow.__slots__}
            connection.execute(custom_losses.insert(), values)
        return row

    def find(self, session_id: str, seq: int) -> LossRow | None:
        """One loss, or none."""
        with self._database.read() as connection:
            return _find(connection, session_id, seq)

    def forget(self, *, ended_before: float, limit: int) -> int:
        """Forget losses whose session ended before then; how many."""
        table = custom_losses
        old = (
            sa.select(table.c.session_id, table.c.seq)
            .join(sessions, sessions.c.session_id == table.c.session_id)
            .where(sessions.c.ended_at < ended_before)
            .limit(limit)
        )
        with self._database.write() as connection:
            keys = [tuple(found) for found in connection.execute(old)]
            if keys:
                key = sa.tuple_(table.c.session_id, table.c.seq)
                connection.execute(table.delete().where(key.in_(keys)))
            return len(keys)


def _find(connection: Connection, session_id: str, seq: int) -> LossRow | None:
    found = connection.execute(
        custom_losses.select().where(
            custom_losses.c.session_id == session_id, custom_losses.c.seq == seq
        )
    ).one_or_none()
    return None if found is None else LossRow(**found._mapping)
