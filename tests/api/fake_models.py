"""Models of a house in memory, and their checkpoints."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import NotFound, RequestError
from plait.service import paths
from plait.service.ports import CheckpointInfo, ModelInfo, Page, Who

if TYPE_CHECKING:
    from fake_house import FakeHouse


class Models:
    """The port."""

    def __init__(self, house: "FakeHouse") -> None:
        self.house = house

    async def model(self, who: Who, model_id: str) -> ModelInfo:
        return self.house.model(who, model_id).info

    async def models(self, who: Who, *, limit: int, offset: int) -> Page[ModelInfo]:
        own = [
            m.info
            for m in reversed(self.house.models_by_id.values())
            if m.who.tenant_id == who.tenant_id
        ]
        return Page(items=own[offset : offset + limit], total=len(own))

    async def checkpoint(self, who: Who, path: str) -> CheckpointInfo:
        return self.house.checkpoint(who, path)

    async def checkpoints(
        self, who: Who, *, model_id: str | None, limit: int | None, offset: int
    ) -> Page[CheckpointInfo]:
        own = [
            info
            for owner, info in reversed(self.house.kept.values())
            if owner.tenant_id == who.tenant_id and model_id in (None, info.model_id)
        ]
        end = None if limit is None else offset + limit
        return Page(items=own[offset:end], total=len(own))

    def _change(self, who: Who, path: str, **changes: Any) -> None:
        owner, info = self.house.kept.get(path, (None, None))
        if owner is None or info is None or owner.tenant_id != who.tenant_id:
            raise NotFound(f"there is no checkpoint {path}")
        self.house.kept[path] = (owner, replace(info, **changes))

    async def publish(self, who: Who, path: str, *, public: bool) -> None:
        self._change(who, path, public=public)

    async def pin(self, who: Who, path: str, *, pinned: bool) -> None:
        self._change(who, path, pinned=pinned)

    async def expire(self, who: Who, path: str, *, ttl_s: float | None) -> None:
        self._change(who, path, expires_at=None if ttl_s is None else self.house.now + ttl_s)

    async def delete(self, who: Who, path: str) -> None:
        if self.house.checkpoint(who, path).pinned:
            raise RequestError(f"{path} is pinned: unpin it first")
        self._change(who, path)
        del self.house.kept[path]
        shutil.rmtree(self.house.folder(path))

    async def copy(
        self,
        who: Who,
        path: str,
        *,
        ttl_s: float | None,
        session_id: str | None,
        model_seq: int | None,
    ) -> str:
        info = self.house.checkpoint(who, path)
        model_id = f"{session_id or 's-copy'}:train:{model_seq or 0}"
        made = replace(info, model_id=model_id, public=False, expires_at=None)
        target = str(paths.Path(model_id=model_id, kind=info.kind, name=info.name))
        shutil.copytree(self.house.folder(path), self.house.folder(target))
        self.house.kept[target] = (who, made)
        return target

    async def files(self, who: Who, path: str) -> Path:
        self.house.checkpoint(who, path)
        return self.house.folder(path)
