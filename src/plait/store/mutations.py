"""Mutations and versions: the log that makes an operation happen once, and what it committed.

Invariants:

- ``(run_id, seq)`` is the idempotency key. Numbers run from 1 without a gap; a number is consumed
  when it is accepted, whatever becomes of the operation. The same number again answers the
  original.
- A mutation ends once: as done with its result, or as failed with its error.
- A version, the end of the mutation that made it, the controller's progress and the usage are one
  transaction. Versions only rise.
- ``rewind`` drops what followed the last version: its effect lay in the memory of a process that
  is gone, so the controller must be able to ask for it again under the same numbers.

What lies on disk under a version's path is the business of ``store.files``: there before it is
here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from plait.core.errors import RunEnded, StoreError
from plait.core.ids import RunId
from plait.obs.jsonl import dumps
from plait.store.database import Database
from plait.store.rows import Accepted, Json, MutationRow, MutationStatus, VersionRow
from plait.store.runs import get_run
from plait.store.schema import mutations, runs, versions
from plait.store.usage import Used, add_usage


class Mutations:
    """Repository of the mutation log and of the versions that it committed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def accept(self, run_id: RunId, seq: int, kind: str, *, now: float) -> Accepted:
        """Make a mutation durable before it is a promise.

        A number that was used before answers the original. StoreError on a gap or on a number used
        for something else; RunEnded if the run takes nothing more.
        """
        with self._database.write() as connection:
            run = get_run(connection, run_id)
            original = _find(connection, run_id, seq)
            if original is not None:
                if original.kind != kind:
                    raise StoreError(
                        f"operation {seq} of run {run_id} was {original.kind}, not {kind}: "
                        f"use number {_last_seq(connection, run_id) + 1}"
                    )
                return Accepted(
                    new=False,
                    status=original.status,
                    result=original.result,
                    error=original.error,
                )
            if run.status.ended:
                raise RunEnded(f"run {run_id} is {run.status}: {run.reason or 'no reason given'}")
            expected = _last_seq(connection, run_id) + 1
            if seq != expected:
                raise StoreError(
                    f"operation {seq} of run {run_id} is out of order: the next is {expected}"
                )
            connection.execute(
                mutations.insert().values(
                    run_id=run_id,
                    seq=seq,
                    kind=kind,
                    status=MutationStatus.ACCEPTED,
                    result={},
                    error="",
                    accepted_at=now,
                    finished_at=None,
                )
            )
            return Accepted(new=True, status=MutationStatus.ACCEPTED)

    def finish(
        self,
        run_id: RunId,
        seq: int,
        *,
        result: Json | None = None,
        error: str | None = None,
        now: float,
    ) -> None:
        """End a mutation with a result or an error. Ending it the same way twice is allowed."""
        with self._database.write() as connection:
            _finish(connection, run_id, seq, result or {}, error, now)

    def finish_many(self, run_id: RunId, made: Mapping[int, float]) -> None:
        """End mutations well: their numbers, and when each ended."""
        with self._database.write() as connection:
            for seq, at in made.items():
                _finish(connection, run_id, seq, {}, None, at)

    def commit_version(
        self,
        run_id: RunId,
        version: int,
        seq: int,
        path: str,
        *,
        result: Json | None = None,
        progress: Json | None = None,
        used: Sequence[Used] = (),
        made: Mapping[int, float] | None = None,
        now: float,
    ) -> VersionRow:
        """Commit a version, its mutation's end, the controller's progress and the usage: all or
        none. ``made``: what else has ended by now, as ``finish_many``.

        The directory must lie under ``path`` already. Asked again with the same version, number
        and path, answers the original and changes nothing. StoreError if the version does not
        rise.
        """
        row = VersionRow(run_id=run_id, version=version, seq=seq, path=path, created_at=now)
        with self._database.write() as connection:
            run = get_run(connection, run_id)
            last = _latest(connection, run_id)
            if last is not None and version <= last.version:
                if (last.version, last.seq, last.path) == (version, seq, path):
                    return last
                raise StoreError(
                    f"version {version} of run {run_id} is not above {last.version}, the last one: "
                    "versions only rise"
                )
            for other, at in (made or {}).items():
                _finish(connection, run_id, other, {}, None, at)
            _finish(connection, run_id, seq, result or {}, None, now)
            connection.execute(
                versions.insert().values(
                    run_id=run_id, version=version, seq=seq, path=path, created_at=now
                )
            )
            values: Json = {"updated_at": now}
            if progress is not None:
                values["progress"] = progress
            connection.execute(runs.update().where(runs.c.run_id == run_id).values(**values))
            for item in used:
                add_usage(connection, run.tenant_id, run_id, item, now)
        return row

    def get(self, run_id: RunId, seq: int) -> MutationRow | None:
        """One mutation, or none."""
        with self._database.read() as connection:
            return _find(connection, run_id, seq)

    def since(self, run_id: RunId, seq: int) -> list[MutationRow]:
        """Mutations after ``seq``, in order."""
        query = mutations.select().where(mutations.c.run_id == run_id, mutations.c.seq > seq)
        with self._database.read() as connection:
            return [
                _mutation(found) for found in connection.execute(query.order_by(mutations.c.seq))
            ]

    def rewind(self, run_id: RunId) -> int:
        """Forget the mutations after the last version, or all if there is none; how many."""
        with self._database.write() as connection:
            get_run(connection, run_id)
            last = _latest(connection, run_id)
            done = connection.execute(
                mutations.delete().where(
                    mutations.c.run_id == run_id, mutations.c.seq > (last.seq if last else 0)
                )
            )
            return int(done.rowcount)

    def latest_version(self, run_id: RunId) -> VersionRow | None:
        """The last committed version, or none."""
        with self._database.read() as connection:
            return _latest(connection, run_id)

    def versions(self, run_id: RunId) -> list[VersionRow]:
        """Committed versions that have not been forgotten, in order."""
        query = versions.select().where(versions.c.run_id == run_id).order_by(versions.c.version)
        with self._database.read() as connection:
            return [VersionRow(**found._mapping) for found in connection.execute(query)]

    def forget_versions(self, run_id: RunId, which: Sequence[int]) -> None:
        """Drop rows before their directories are removed; the latest version is never dropped."""
        with self._database.write() as connection:
            last = _latest(connection, run_id)
            if last is not None and last.version in which:
                raise StoreError(f"version {last.version} of run {run_id} is its last: it stays")
            connection.execute(
                versions.delete().where(
                    versions.c.run_id == run_id, versions.c.version.in_(list(which))
                )
            )


def _finish(
    connection: Connection, run_id: RunId, seq: int, result: Json, error: str | None, now: float
) -> None:
    status = MutationStatus.DONE if error is None else MutationStatus.FAILED
    result = json.loads(dumps(result))  # as it will be read back, so that a retry compares equal
    original = _find(connection, run_id, seq)
    if original is None:
        raise StoreError(f"operation {seq} of run {run_id} was never accepted: accept it first")
    if original.status is not MutationStatus.ACCEPTED:
        if (original.status, original.result, original.error) == (status, result, error or ""):
            return
        raise StoreError(f"operation {seq} of run {run_id} has ended already ({original.status})")
    connection.execute(
        mutations.update()
        .where(mutations.c.run_id == run_id, mutations.c.seq == seq)
        .values(status=status, result=result, error=error or "", finished_at=now)
    )


def _find(connection: Connection, run_id: RunId, seq: int) -> MutationRow | None:
    query = mutations.select().where(mutations.c.run_id == run_id, mutations.c.seq == seq)
    found = connection.execute(query).one_or_none()
    return None if found is None else _mutation(found)


def _last_seq(connection: Connection, run_id: RunId) -> int:
    query = sa.select(sa.func.max(mutations.c.seq)).where(mutations.c.run_id == run_id)
    return connection.execute(query).scalar_one() or 0


def _latest(connection: Connection, run_id: RunId) -> VersionRow | None:
    query = versions.select().where(versions.c.run_id == run_id)
    found = connection.execute(query.order_by(versions.c.version.desc()).limit(1)).one_or_none()
    return None if found is None else VersionRow(**found._mapping)


def _mutation(found: sa.Row[Any]) -> MutationRow:
    values = dict(found._mapping)
    return MutationRow(**{**values, "status": MutationStatus(values["status"])})
