"""Samplers: which weights each sampler of a client's session draws from.

A sampler keeps the adapter's files that it was made for under its session's directory (hard links),
from before its row is in the store until its session ends: neither the retention of versions nor
the deletion of a checkpoint takes them. A restart serves every sampler that lives.

Invariants: one id names one sampler, asked again or not, and none of another source
(RequestError); one that was freed says so (SessionEnded), a foreign one is unknown; ``inflight``
ones follow the newest version that their model commits, samples under way end with the one they
began with.

Left to others: when a session ends, and whether it is the caller's to make samplers in (sessions);
what is loaded where (``sample_lane``).
"""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from plait.core.errors import NotFound, RequestError, SessionEnded
from plait.core.ids import RunId, TenantId
from plait.service import names
from plait.service.ports import Models, Who
from plait.service.snapshots import Snapshots
from plait.service.ticket import Source
from plait.store.samplers import SamplerRow
from plait.store.store import Store

SAMPLER_ID = re.compile(r"(s-[0-9a-f]{8,64}):sample:(\d{1,9})")
DIRECTORY = "samplers"
"""Under the house's: a directory per session, in it one per sampler."""


class Writes(Protocol):
    """The store's thread."""

    async def write(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The answer of a method of the store, durable before it is here."""


class Samplers:
    """All samplers of a house."""

    def __init__(
        self,
        *,
        store: Store,
        writer: Writes,
        directory: Path,
        models: Models,
        base_models: Callable[[], Collection[str]],
        wall: Callable[[], float],
    ) -> None:
        self._store, self._writer, self._models = store, writer, models
        self._directory, self._base_models, self._wall = directory, base_models, wall
        self._snapshots = Snapshots(directory / DIRECTORY)
        self._rows: dict[str, SamplerRow] = {}
        """Those that live and have been asked for."""
        self._following: dict[RunId, set[str]] = {}
        self._joined: dict[str, int] = {}

    async def recover(self) -> None:
        """Take up what lives, and clear what an end by force has left of the rest."""
        live = await asyncio.to_thread(self._store.samplers.live)
        for row in live:
            self._enter(row)
        keep = {row.session_id for row in live}
        await asyncio.to_thread(self._snapshots.clear, keep)

    async def pin(
        self,
        *,
        session_id: str,
        sampler_seq: int,
        model_id: str,
        tenant_id: TenantId,
        version: int,
        version_dir: Path,
        inflight: bool = False,
    ) -> str:
        """A sampler of a model's version as it is now; its id."""
        sampler_id = f"{session_id}:sample:{sampler_seq}"
        run_id = names.run_of(model_id)
        if self._is_open(sampler_id, run_id=run_id, model_path=None):
            return sampler_id
        run = await asyncio.to_thread(self._store.runs.get, run_id)
        name = f"{sampler_seq}-{version}.{model_id.rpartition(':')[2]}"
        path = await self._link(session_id, name, version_dir)
        await self._open(
            sampler_id,
            session_id=session_id,
            tenant_id=tenant_id,
            base_model=run.spec["base_model"],
            run_id=run_id,
            version=version,
            path=path,
            inflight=inflight,
        )
        return sampler_id

    async def open_sampler(
        self, who: Who, session_id: str, seq: int, *, base_model: str | None, path: str | None
    ) -> str:
        """A sampler of a base model or of a checkpoint; its id. The session is the caller's."""
        sampler_id = f"{session_id}:sample:{seq}"
        if sampler_id in self._rows:
            await self._row(who, sampler_id)
        asked = {"run_id": None, "base_model": base_model} if path is None else {}
        if self._is_open(sampler_id, model_path=path, **asked):
            return sampler_id
        where: dict[str, Any] = {}
        if path is not None:
            info = await self._models.checkpoint(who, path)
            files = await self._models.files(who, path)
            run_id = names.run_of(info.model_id)
            row = await asyncio.to_thread(
                self._store.checkpoints.find, run_id, path.partition("://")[2].partition("/")[2]
            )
            mark = blake2b(f"{path} {info.created_at}".encode(), digest_size=6).hexdigest()
            where = {
                "model_path": path,
                "run_id": run_id,
                "version": 0 if row is None else row.version,
                "path": await self._link(session_id, f"{seq}.{mark}", files),
            }
            base_model = info.base_model
        elif base_model is None:
            raise RequestError("a sampler is of a base_model or of a model_path: give one")
        if base_model not in self._base_models():
            raise NotFound(f"base model {base_model} is not served here")
        await self._open(
            sampler_id,
            session_id=session_id,
            tenant_id=who.tenant_id,
            base_model=base_model,
            **where,
        )
        return sampler_id

    async def sampler(self, who: Who, sampler_id: str) -> Mapping[str, Any]:
        """What a client is told of a sampler."""
        row = await self._row(who, sampler_id, freed_too=True)
        told = {"sampler_id": row.sampler_id, "base_model": row.base_model}
        return told if row.model_path is None else {**told, "model_path": row.model_path}

    async def source(self, who: Who, sampler_id: str) -> Source:
        """What a sampler draws from; NotFound, or SessionEnded once it is freed."""
        return self._source(await self._row(who, sampler_id))

    def pinned(self, sampler_id: str) -> Source:
        """The same of one that ``pin`` has just made."""
        return self._source(self._rows[sampler_id])

    def _source(self, row: SamplerRow) -> Source:
        if row.run_id is None:
            return Source(tenant_id=row.tenant_id, base_model=row.base_model)
        # A checkpoint's bytes can differ from those of the version it is a copy of: of its name.
        policy = row.run_id if row.model_path is None else row.sampler_id
        return Source(
            tenant_id=row.tenant_id,
            base_model=row.base_model,
            run=row.run_id,
            policy=policy,
            version=row.version or 0,
            directory=self._directory / row.path,
        )

    async def join(self, who: Who, sampler_id: str) -> int:
        """A number for another copy of a client. Never given twice, by a later life of the server
        neither: it is at least the sampler's age in seconds."""
        row = await self._row(who, sampler_id)
        age = int(self._wall() - row.created_at)
        self._joined[sampler_id] = number = max(self._joined.get(sampler_id, 0), age) + 1
        return number

    async def advanced(self, model_id: str, version: int, version_dir: Path) -> None:
        """A model has committed a version: samplers that follow it go on with that."""
        for sampler_id in list(self._following.get(names.run_of(model_id), ())):
            row = self._rows[sampler_id]
            if row.version == version:
                continue
            seq = sampler_id.rpartition(":")[2]
            path = await self._link(row.session_id, f"{seq}-{version}", version_dir)
            self._enter(
                await self._writer.write(
                    self._store.samplers.follow, sampler_id, version=version, path=path
                )
            )
            await asyncio.to_thread(self._snapshots.drop, f"{row.session_id}/{Path(row.path).name}")

    async def session_ended(self, session_id: str) -> tuple[str, ...]:
        """Free all samplers of a session; which ones."""
        rows: list[SamplerRow] = await self._writer.write(
            self._store.samplers.free_session, session_id, now=self._wall()
        )
        for row in rows:
            self._rows.pop(row.sampler_id, None)
            self._joined.pop(row.sampler_id, None)
            if row.run_id in self._following:
                self._following[row.run_id].discard(row.sampler_id)
                if not self._following[row.run_id]:
                    del self._following[row.run_id]
        await asyncio.to_thread(self._snapshots.drop, session_id)
        return tuple(row.sampler_id for row in rows)

    async def _link(self, session_id: str, name: str, source: Path) -> str:
        """Keep an adapter's files for a sampler; where, relative to the house's directory."""
        kept = await asyncio.to_thread(self._snapshots.take, f"{session_id}/{name}", source)
        return str(kept.relative_to(self._directory))

    async def _open(self, sampler_id: str, **fields: Any) -> None:
        row = await self._writer.write(
            self._store.samplers.open, sampler_id, **fields, now=self._wall()
        )
        self._enter(row)
        source = {name: fields.get(name) for name in ("run_id", "model_path", "base_model")}
        self._is_open(sampler_id, **source)  # another may have been quicker

    def _is_open(self, sampler_id: str, **source: str | None) -> bool:
        """True if there is such a sampler, of this source; RequestError if it is of another."""
        row = self._rows.get(sampler_id)
        if row is not None and any(getattr(row, name) != of for name, of in source.items()):
            raise RequestError(f"{sampler_id} samples something else: give another number")
        return row is not None

    def _enter(self, row: SamplerRow) -> None:
        self._rows[row.sampler_id] = row
        if row.inflight and row.run_id is not None:
            self._following.setdefault(row.run_id, set()).add(row.sampler_id)

    async def _row(self, who: Who, sampler_id: str, *, freed_too: bool = False) -> SamplerRow:
        row = self._rows.get(sampler_id)
        if row is None and SAMPLER_ID.fullmatch(sampler_id):
            row = await asyncio.to_thread(self._store.samplers.find, sampler_id)
        if row is None or row.tenant_id != who.tenant_id:
            raise NotFound(f"there is no sampler {sampler_id[:120]!r}: open one")
        if row.freed_at is None:
            self._enter(row)
        elif not freed_too:
            raise SessionEnded(f"sampler {sampler_id} went with its session: open another")
        return row
