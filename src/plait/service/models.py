"""Models: what is known of clients' models and their checkpoints, as doors ask for it."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from pathlib import Path

from plait.core.errors import NotFound, RequestError
from plait.service import keep, names, paths
from plait.service.checkpoints import Checkpoints, is_over, told
from plait.service.names import MODEL_ID, model_of, run_of, session_of
from plait.service.ports import CheckpointInfo, ModelInfo, Page, Who
from plait.service.residents import Known, known_of
from plait.service.work import CheckpointKind, SaveCheckpoint
from plait.store.rows import RunStatus
from plait.store.store import Store
from plait.store.writer import GroupWriter


class Models:
    """``ports.Models`` over the store."""

    def __init__(
        self,
        store: Store,
        writer: GroupWriter,
        checkpoints: Checkpoints,
        *,
        wall: Callable[[], float],
        new_session: Callable[[Who], str],
        check_session: Callable[[Who, str], Awaitable[None]],
    ) -> None:
        """``check_session``: raises unless the session is the caller's and lives."""
        self._store, self._writer, self._checkpoints = store, writer, checkpoints
        self._wall, self._new_session = wall, new_session
        self._check_session = check_session

    async def model(self, who: Who, model_id: str) -> ModelInfo:
        """One model."""
        session_of(model_id)
        known = await self._known(model_id)
        if known is None or known.tenant_id != who.tenant_id:
            raise NotFound(f"there is no model {model_id}")
        return _told(known)

    async def models(self, who: Who, *, limit: int, offset: int) -> Page[ModelInfo]:
        """The tenant's models, newest first."""

        def read() -> Page[ModelInfo]:
            rows = [
                (model_id, row)
                for row in reversed(self._store.runs.list(tenant_id=who.tenant_id))
                if MODEL_ID.fullmatch(model_id := model_of(row.run_id))
            ]
            items = [_told(known_of(*one)) for one in rows[offset : offset + limit]]
            return Page(items=items, total=len(rows))

        return await asyncio.to_thread(read)

    async def checkpoint(self, who: Who, path: str) -> CheckpointInfo:
        """One checkpoint."""
        found = await self._checkpoints.find(who.tenant_id, path)
        return told(found.row, found.source)

    async def checkpoints(
        self, who: Who, *, model_id: str | None, limit: int | None, offset: int
    ) -> Page[CheckpointInfo]:
        """A model's checkpoints, or all of the tenant's, newest first."""
        if model_id is not None:
            await self.model(who, model_id)

        def read() -> Page[CheckpointInfo]:
            store, now = self._store, self._wall()
            if model_id is None:
                rows = store.checkpoints.of_tenant(who.tenant_id)
                runs = store.runs.list(tenant_id=who.tenant_id)
            else:
                rows = store.checkpoints.list(run_of(model_id))[::-1]
                runs = [store.runs.get(run_of(model_id))]
            rows = [row for row in rows if not row.automatic and not is_over(row, now)]
            some = rows[offset:] if limit is None else rows[offset : offset + limit]
            shown = {row.run_id for row in some}
            sources = {
                run.run_id: known_of(model_of(run.run_id), run)
                for run in runs
                if run.run_id in shown
            }
            return Page(items=[told(row, sources[row.run_id]) for row in some], total=len(rows))

        return await asyncio.to_thread(read)

    async def publish(self, who: Who, path: str, *, public: bool) -> None:
        """Let everybody on this server read a checkpoint, or not."""
        found = await self._checkpoints.find(who.tenant_id, path, own=True)
        await self._checkpoints.publish(found, public)

    async def pin(self, who: Who, path: str, *, pinned: bool) -> None:
        """Let nothing remove a checkpoint, or let it go its way again."""
        found = await self._checkpoints.find(who.tenant_id, path, own=True)
        await self._checkpoints.pin(found, pinned)

    async def expire(self, who: Who, path: str, *, ttl_s: float | None) -> None:
        """Delete a checkpoint so long from now; never if None."""
        found = await self._checkpoints.find(who.tenant_id, path, own=True)
        await self._checkpoints.expire(found, ttl_s)

    async def delete(self, who: Who, path: str) -> None:
        """Delete a checkpoint; samplers that were made from it go on."""
        found = await self._checkpoints.find(who.tenant_id, path, own=True)
        await self._checkpoints.delete(found)

    async def copy(
        self,
        who: Who,
        path: str,
        *,
        ttl_s: float | None,
        session_id: str | None,
        model_seq: int | None,
    ) -> str:
        """A copy of a checkpoint under a model of the caller's own; its path."""
        found = await self._checkpoints.find(who.tenant_id, path)
        if (session_id is None) != (model_seq is None):
            raise RequestError("give the session's id and the model's number, or neither")
        if session_id is None:
            session_id = self._new_session(who)
        else:
            await self._check_session(who, session_id)
        model_id = names.model_id(session_id, model_seq or 0)
        session_of(model_id)
        row, source = found.row, found.source
        spec = {
            "base_model": source.base_model,
            "lora": {
                "rank": source.lora.rank,
                "alpha": source.lora.alpha,
                "targets": list(source.lora.targets),
                "seed": source.lora.seed,
            },
            "about": {"from": path},
        }
        there = await self._known(model_id)
        if there is not None and not there.is_like(source.base_model, source.lora):
            raise RequestError(f"{model_id} is a model of another shape: give another number")
        if there is None:
            await self._writer.write(
                self._store.runs.create,
                run_of(model_id),
                tenant_id=who.tenant_id,
                name=run_of(model_id),
                spec=spec,
                now=self._wall(),
            )
        work = SaveCheckpoint(
            name=found.path.name,
            kind=CheckpointKind(row.kind),
            optimizer=row.has_optimizer,
            ttl_s=ttl_s,
            user_metadata=row.user_metadata,
        )
        # Instead of a request's number: the same for this checkpoint alone.
        mark = blake2b(f"{found.path} {row.created_at}".encode(), digest_size=6).digest()
        saved = await self._checkpoints.save(
            model_id,
            int.from_bytes(mark),
            work,
            tenant_id=who.tenant_id,
            version=row.version,
            version_dir=found.folder,
        )
        return saved.path

    async def files(self, who: Who, path: str) -> Path:
        """The directory that a checkpoint lies in."""
        found = await self._checkpoints.find(who.tenant_id, path)
        keep.check_there(found.folder, paths.parse(path))
        return found.folder

    async def _known(self, model_id: str) -> Known | None:
        row = await asyncio.to_thread(self._store.runs.find, run_of(model_id))
        return None if row is None else known_of(model_id, row)


def _told(known: Known) -> ModelInfo:
    return ModelInfo(
        model_id=known.model_id,
        session_id=session_of(known.model_id),
        base_model=known.base_model,
        lora=known.lora,
        created_at=known.created_at,
        last_request_at=known.updated_at,
        user_metadata=known.about.get("user_metadata") or {},
        corrupted=known.status is RunStatus.FAILED,
    )
