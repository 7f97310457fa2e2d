"""Checkpoints: those of a tenant's models, listed, pinned, deleted, downloaded."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from plait.service import archive as archives
from plait.service import paths
from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.jobs_api.views import CheckpointsView, CheckpointView, Limit, Offset, iso
from plait.service.ports import CheckpointInfo, House

CheckpointPath = Annotated[str, Query(min_length=1, max_length=400)]


def router(house: House) -> APIRouter:
    """Routes under ``/v1/checkpoints``."""
    api = APIRouter(prefix="/checkpoints", tags=["checkpoints"], responses=responses())

    @api.get("")
    async def all_checkpoints(
        who: Caller,
        run: Annotated[str | None, Query(max_length=160)] = None,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> CheckpointsView:
        """The caller's checkpoints, or one model's, newest first."""
        found = await house.models.checkpoints(who, model_id=run, limit=limit, offset=offset)
        return CheckpointsView(checkpoints=[_view(info) for info in found.items], total=found.total)

    @api.delete("", status_code=204)
    async def delete(path: CheckpointPath, who: Caller) -> Response:
        """Delete a checkpoint that is not pinned; samplers that were made from it go on."""
        await house.models.delete(who, path)
        return Response(status_code=204)

    @api.post("/pin", status_code=204)
    async def pin(path: CheckpointPath, who: Caller) -> Response:
        """Keep a checkpoint: it does not expire, and is neither deleted nor overwritten."""
        await house.models.pin(who, path, pinned=True)
        return Response(status_code=204)

    @api.delete("/pin", status_code=204)
    async def unpin(path: CheckpointPath, who: Caller) -> Response:
        """Let a checkpoint go its way again; one whose time is over expires at once."""
        await house.models.pin(who, path, pinned=False)
        return Response(status_code=204)

    @api.get(
        "/archive",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/x-tar": {}}}},
    )
    async def archive(path: CheckpointPath, who: Caller) -> StreamingResponse:
        """The files of a checkpoint, as a tar archive."""
        return archives.response(await house.models.files(who, path), path.rpartition("/")[2])

    return api


def _view(info: CheckpointInfo) -> CheckpointView:
    name = paths.Path(model_id=info.model_id, kind=info.kind, name=info.name)
    return CheckpointView(
        path=str(name),
        kind=info.kind.value,
        run_id=info.model_id,
        size_bytes=info.size_bytes,
        created_at=iso(info.created_at),
        expires_at=None if info.expires_at is None else iso(info.expires_at),
        public=info.public,
        pinned=info.pinned,
        has_optimizer=info.has_optimizer,
    )
