"""Requests: what clients asked of models, as they said it, and what they were answered.

Invariants:

- ``(owner, seq)`` is the idempotency key; the owner is the model's id on the wire. Numbers come in
  any order and may leave gaps: the order in which they are carried out is ``service.line``'s.
  The same number again answers the original, whatever it asks for.
- A request ends once, in an answer or in an error; whoever ends it a second time changes nothing
  (a gradient that is carried out again after a crash keeps the answer that was given).
- A body is kept until ``shed``, an answer until ``prune``; the number stays used until ``forget``,
  long after its session has ended.
"""

from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.errors import NotFound
from plait.core.ids import TenantId
from plait.store.database import Database
from plait.store.rows import MutationStatus
from plait.store.schema import request_bodies, requests, sessions

Category = Literal["", "user", "server", "unknown"]


_ENDING = ("status", "error", "category", "answer", "finished_at")

# Statements of the path that every request takes, built once: building one costs more than running
# it.
_KEY = (requests.c.owner == sa.bindparam("o"), requests.c.seq == sa.bindparam("s"))
_FIND = requests.select().where(*_KEY)
_INSERT, _INSERT_BODY = requests.insert(), request_bodies.insert()
_END = (
    requests.update()
    .where(*_KEY, requests.c.finished_at.is_(None))
    .values({name: sa.bindparam(name) for name in _ENDING})
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request, without its body. ``answer`` is None until it is done, and when pruned."""

    owner: str
    seq: int
    tenant_id: TenantId
    session_id: str
    kind: str
    status: MutationStatus
    category: Category
    error: str
    accepted_at: float
    finished_at: float | None
    answer: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Answer to ``accept``: new, or the original as it stands."""

    new: bool
    row: RequestRow


class Requests:
    """Repository of requests. Write from the group writer: ``writer.write(requests.accept, …)``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def accept(
        self,
        owner: str,
        seq: int,
        *,
        tenant_id: TenantId,
        session_id: str,
        kind: str,
        body: bytes,
        now: float,
    ) -> Asked:
        """Make a request durable before it is a promise."""
        row = RequestRow(
            owner=owner,
            seq=seq,
            tenant_id=tenant_id,
            session_id=session_id,
            kind=kind,
            status=MutationStatus.ACCEPTED,
            category="",
            error="",
            accepted_at=now,
            finished_at=None,
            answer=None,
        )
        return self._insert(row, body)

    def skip(
        self,
        owner: str,
        seq: int,
        *,
        tenant_id: TenantId,
        session_id: str,
        kind: str,
        error: str,
        category: Category,
        now: float,
    ) -> Asked:
        """Use up the number of a request that was refused or never came: it has failed."""
        row = RequestRow(
            owner=owner,
            seq=seq,
            tenant_id=tenant_id,
            session_id=session_id,
            kind=kind,
            status=MutationStatus.FAILED,
            category=category,
            error=error,
            accepted_at=now,
            finished_at=now,
            answer=None,
        )
        return self._insert(row, None)

    def finish(self, owner: str, seq: int, answer: bytes, *, now: float) -> bool:
        """End a request with its answer; False if it had ended before. NotFound."""
        return self._end(
            owner,
            seq,
            status=MutationStatus.DONE,
            error="",
            category="",
            answer=answer,
            finished_at=now,
        )

    def fail(self, owner: str, seq: int, error: str, *, category: Category, now: float) -> bool:
        """End a request with its error; False if it had ended before. NotFound."""
        return self._end(
            owner,
            seq,
            status=MutationStatus.FAILED,
            error=error,
            category=category,
            answer=None,
            finished_at=now,
        )

    def find(self, owner: str, seq: int) -> RequestRow | None:
        """One request, or none."""
        with self._database.read() as connection:
            return _find(connection, owner, seq)

    def body(self, owner: str, seq: int) -> bytes | None:
        """What was asked, in the client's bytes; None if it was shed, or never came."""
        query = sa.select(request_bodies.c.body).where(
            request_bodies.c.owner == owner, request_bodies.c.seq == seq
        )
        with self._database.read() as connection:
            return connection.execute(query).scalar_one_or_none()

    def sizes(self, owner: str) -> dict[int, int]:
        """Bytes of an owner's bodies that were not shed, by number."""
        query = sa.select(request_bodies.c.seq, sa.func.length(request_bodies.c.body))
        with self._database.read() as connection:
            found = connection.execute(query.where(request_bodies.c.owner == owner))
            return {int(seq): int(size) for seq, size in found}

    def after(self, owner: str, seq: int = -1) -> list[RequestRow]:
        """An owner's requests with higher numbers, in order, their answers left out."""
        columns = [c for c in requests.c if c.name != "answer"]
        query = sa.select(*columns).where(requests.c.owner == owner, requests.c.seq > seq)
        with self._database.read() as connection:
            return [
                _row({**found._mapping, "answer": None})
                for found in connection.execute(query.order_by(requests.c.seq))
            ]

    def owners_unended(self) -> list[str]:
        """Who has requests that have not ended: what a restart has to carry on with."""
        query = sa.select(requests.c.owner).where(requests.c.finished_at.is_(None)).distinct()
        with self._database.read() as connection:
            return sorted(connection.execute(query).scalars())

    def shed(self, owner: str, through: int) -> int:
        """Drop the bodies of ended requests up to a number: a committed version holds their
        effect, so nobody will carry them out again. How many."""
        ended = sa.select(requests.c.seq).where(
            requests.c.owner == owner,
            requests.c.seq <= through,
            requests.c.finished_at.is_not(None),
        )
        with self._database.write() as connection:
            done = connection.execute(
                request_bodies.delete().where(
                    request_bodies.c.owner == owner,
                    request_bodies.c.seq <= through,
                    request_bodies.c.seq.in_(ended),
                )
            )
            return int(done.rowcount)

    def drop_body(self, owner: str, seq: int) -> None:
        """Drop the body of one request, which nobody will carry out again."""
        with self._database.write() as connection:
            connection.execute(
                request_bodies.delete().where(
                    request_bodies.c.owner == owner, request_bodies.c.seq == seq
                )
            )

    def prune(self, *, ended_before: float, limit: int = 1000) -> int:
        """Drop the answers of requests that ended before a time, which their clients have had or
        given up. How many: fewer than ``limit`` when there are no more."""
        old = (
            sa.select(requests.c.owner, requests.c.seq)
            .where(requests.c.answer.is_not(None), requests.c.finished_at < ended_before)
            .limit(limit)
        )
        with self._database.write() as connection:
            keys = [tuple(found) for found in connection.execute(old)]
            if keys:
                connection.execute(
                    requests.update()
                    .where(sa.tuple_(requests.c.owner, requests.c.seq).in_(keys))
                    .values(answer=None)
                )
            return len(keys)

    def drop_bodies(self, *, ended_before: float, limit: int = 1000) -> int:
        """Drop the bodies of ended requests of sessions that ended before a time: gradients that no
        step has followed, and none will. How many: fewer than ``limit`` when there are no more."""
        key = (request_bodies.c.owner, request_bodies.c.seq)
        same = sa.and_(requests.c.owner == key[0], requests.c.seq == key[1])
        old = (
            sa.select(*key)
            .join(requests, same)
            .join(sessions, sessions.c.session_id == requests.c.session_id)
            .where(sessions.c.ended_at < ended_before, requests.c.finished_at.is_not(None))
            .limit(limit)
        )
        with self._database.write() as connection:
            keys = [tuple(found) for found in connection.execute(old)]
            if keys:
                connection.execute(request_bodies.delete().where(sa.tuple_(*key).in_(keys)))
            return len(keys)

    def forget(self, *, ended_before: float, limit: int = 1000) -> int:
        """Drop all about requests of sessions that ended before a time, numbers included: such a
        session takes nothing more. How many: fewer than ``limit`` when there are no more."""
        old = (
            sa.select(requests.c.owner, requests.c.seq)
            .join(sessions, sessions.c.session_id == requests.c.session_id)
            .where(sessions.c.ended_at < ended_before, requests.c.finished_at.is_not(None))
            .limit(limit)
        )
        with self._database.write() as connection:
            keys = [tuple(found) for found in connection.execute(old)]
            if keys:
                for table in (request_bodies, requests):
                    connection.execute(
                        table.delete().where(sa.tuple_(table.c.owner, table.c.seq).in_(keys))
                    )
            return len(keys)

    def _insert(self, row: RequestRow, body: bytes | None) -> Asked:
        with self._database.write() as connection:
            original = _find(connection, row.owner, row.seq)
            if original is not None:
                return Asked(new=False, row=original)
            connection.execute(_INSERT, {name: getattr(row, name) for name in RequestRow.__slots__})
            if body is not None:
                connection.execute(_INSERT_BODY, {"owner": row.owner, "seq": row.seq, "body": body})
            return Asked(new=True, row=row)

    def _end(self, owner: str, seq: int, **values: Any) -> bool:
        with self._database.write() as connection:
            done = connection.execute(_END, {"o": owner, "s": seq, **values})
            if done.rowcount == 0 and _find(connection, owner, seq) is None:
                raise NotFound(f"there is no request {owner}:{seq}: it was never accepted")
            return done.rowcount == 1


def _find(connection: Connection, owner: str, seq: int) -> RequestRow | None:
    found = connection.execute(_FIND, {"o": owner, "s": seq}).one_or_none()
    return None if found is None else _row(dict(found._mapping))


def _row(values: dict[str, Any]) -> RequestRow:
    return RequestRow(**{**values, "status": MutationStatus(values["status"])})
