"""Checkpoints: saved, found, loaded, published, pinned, expired and deleted by their ``tinker://``
paths.

A row names a directory that is whole. Another tenant's checkpoint is none, unless it is public and
only read. A pinned one does not expire, and is neither deleted nor overwritten until it is
unpinned. A save over such a one, or that its tenant has no room for, is refused before a file is
made; saves of several models at one moment may each find the same room.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as Folder

from plait.core.errors import NotFound, RequestError
from plait.core.ids import TenantId
from plait.service import keep, paths
from plait.service.limits import Limits
from plait.service.names import model_of, run_of
from plait.service.paths import Path
from plait.service.ports import CheckpointInfo
from plait.service.residents import Known, known_of
from plait.service.work import CheckpointKind, SaveCheckpoint, Saved
from plait.store.rows import CheckpointRow, RunRow
from plait.store.store import Store
from plait.store.writer import GroupWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint that may be read, and the model that it was made of."""

    path: Path
    folder: Folder
    row: CheckpointRow
    source: Known


class Checkpoints:
    """All checkpoints of a house."""

    def __init__(
        self,
        directory: Folder,
        store: Store,
        writer: GroupWriter,
        *,
        wall: Callable[[], float],
        limits: Limits,
    ) -> None:
        """``directory`` is the house's: rows name what lies below it."""
        self._root, self._store, self._writer, self._wall = directory, store, writer, wall
        self._limits = limits

    async def save(
        self,
        model_id: str,
        seq: int,
        work: SaveCheckpoint,
        *,
        tenant_id: TenantId,
        version: int,
        version_dir: Folder,
    ) -> Saved:
        """Keep a committed version under a name. RequestError if the name is taken by another save
        and not to be used again, or by one that is pinned; Limited if the tenant has no room."""
        path = Path(model_id=model_id, kind=work.kind, name=paths.checked(work.name))
        run_id, name = run_of(model_id), path.checkpoint_id
        relative = str(Folder("checkpoints") / keep.folder_of(path, seq))
        before = await self._read(run_id, name)
        taken = before is not None and before.path != relative and not self._is_over(before)
        if taken and not work.overwrite:
            raise RequestError(f"{path} exists already: choose another name, or overwrite it")
        if before is not None and before.pinned:
            if taken:
                raise _pinned(path)
            return Saved(path=str(path), size_bytes=before.size_bytes)  # this save's own
        folder = self._root / relative
        if before is None or before.path != relative:  # else it is done already
            await self._check_room(tenant_id, version_dir, work, before)
        size = await asyncio.to_thread(
            keep.keep, version_dir, folder, kind=work.kind, optimizer=work.optimizer
        )
        now = self._wall()
        await self._writer.write(
            self._store.checkpoints.put,
            run_id,
            name,
            version=version,
            path=relative,
            kind=work.kind.value,
            has_optimizer=await asyncio.to_thread(keep.has_optimizer, folder),
            size_bytes=size,
            expires_at=None if work.ttl_s is None else now + work.ttl_s,
            user_metadata=dict(work.user_metadata),
            now=now,
        )
        if before is not None and before.path != relative:
            await asyncio.to_thread(keep.remove, self._root / before.path)
        return Saved(path=str(path), size_bytes=size)

    async def stored(self, tenant_id: TenantId) -> int:
        """Bytes of a tenant's checkpoints."""
        stored = self._store.checkpoints.bytes_of_tenant
        return await asyncio.to_thread(stored, tenant_id, now=self._wall())

    async def _check_room(
        self,
        tenant_id: TenantId,
        version_dir: Folder,
        work: SaveCheckpoint,
        before: CheckpointRow | None,
    ) -> None:
        more = await asyncio.to_thread(
            keep.cost, version_dir, kind=work.kind, optimizer=work.optimizer
        )
        stored = await self.stored(tenant_id)
        replaced = 0 if before is None or self._is_over(before) else before.size_bytes
        self._limits.check_storage(tenant_id, stored - replaced, more)

    async def find(self, tenant_id: TenantId, text: str, *, own: bool = False) -> Found:
        """A checkpoint that a tenant may read, or change (``own``); NotFound. RequestError if it is
        to be read and its files are gone: it can still be unpinned and deleted."""
        path = paths.parse(text)
        run_id = run_of(path.model_id)
        row = await self._read(run_id, path.checkpoint_id)
        run = await self._writer.write(self._store.runs.find, run_id)
        if row is None or run is None or not self._may(tenant_id, run, row, own=own):
            raise NotFound(f"there is no checkpoint {path}")
        found = Found(
            path=path,
            folder=self._root / row.path,
            row=row,
            source=known_of(path.model_id, run),
        )
        if not own:
            await asyncio.to_thread(keep.check_there, found.folder, path)
        return found

    def _may(self, tenant_id: TenantId, run: RunRow, row: CheckpointRow, *, own: bool) -> bool:
        if self._is_over(row):
            return False
        return run.tenant_id == tenant_id or (row.public and not own)

    def _is_over(self, row: CheckpointRow) -> bool:
        return is_over(row, self._wall())

    async def expire_due(self) -> int:
        """Delete what has expired; how many."""
        rows = await self._writer.write(self._store.checkpoints.delete_expired, self._wall())
        await self._remove(rows)
        return len(rows)

    async def delete(self, found: Found) -> None:
        """Delete one; whoever draws from it has links of its own. RequestError if it is pinned."""
        key = (found.row.run_id, found.row.name)
        gone = await self._writer.write(self._store.checkpoints.delete_many, [key])
        if not gone and (row := await self._read(*key)) is not None and row.pinned:
            raise _pinned(found.path)
        await self._remove(gone)

    async def _remove(self, gone: list[CheckpointRow]) -> None:
        for row in gone:
            await asyncio.to_thread(keep.remove, self._root / row.path)

    async def publish(self, found: Found, public: bool) -> None:
        """Let everybody read one, or not."""
        row = found.row
        await self._writer.write(self._store.checkpoints.set_public, row.run_id, row.name, public)

    async def pin(self, found: Found, pinned: bool) -> None:
        """Let nothing remove one, or let it go its way again."""
        row = found.row
        await self._writer.write(self._store.checkpoints.set_pinned, row.run_id, row.name, pinned)

    async def expire(self, found: Found, ttl_s: float | None) -> None:
        """Delete one so long from now; never if None."""
        at = None if ttl_s is None else self._wall() + ttl_s
        row = found.row
        await self._writer.write(self._store.checkpoints.set_expiry, row.run_id, row.name, at)

    async def _read(self, run_id: str, name: str) -> CheckpointRow | None:
        return await self._writer.write(self._store.checkpoints.find, run_of(run_id), name)


def is_over(row: CheckpointRow, now: float) -> bool:
    """True if its time is over, so that it is none any more."""
    return row.expires_at is not None and row.expires_at <= now and not row.pinned


def _pinned(path: Path) -> RequestError:
    return RequestError(f"{path} is pinned: unpin it first")


def told(row: CheckpointRow, source: Known) -> CheckpointInfo:
    """A checkpoint as doors tell of it."""
    path = paths.of(model_of(row.run_id), row.name)
    return CheckpointInfo(
        model_id=path.model_id,
        kind=CheckpointKind(row.kind),
        name=path.name,
        base_model=source.base_model,
        lora=source.lora,
        created_at=row.created_at,
        size_bytes=row.size_bytes,
        has_optimizer=row.has_optimizer,
        user_metadata=row.user_metadata,
        public=row.public,
        expires_at=row.expires_at,
        pinned=row.pinned,
    )
