"""Runs: models and checkpoints as a client lists and keeps them.

Ids of runs hold colons, ids of checkpoints a slash (``weights/NAME``). Lists are the newest first.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from plait.core.errors import RequestError
from plait.service import paths
from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.ports import CheckpointInfo, House, ModelInfo, Who
from plait.service.tinker_api import bodies, told
from plait.service.work import CheckpointKind

RUN = "/training_runs/{model_id}"
CHECKPOINT = RUN + "/checkpoints/{section}/{name}"


def routes(house: House) -> APIRouter:
    """The endpoints, over a house."""
    router = APIRouter()

    @router.get("/training_runs", responses=responses())
    async def training_runs(
        who: Caller, limit: told.Limit = 20, offset: told.Offset = 0
    ) -> dict[str, Any]:
        """The caller's models."""
        page = await house.models.models(who, limit=limit, offset=offset)
        kept = await house.models.checkpoints(who, model_id=None, limit=None, offset=0)
        by_model: defaultdict[str, list[CheckpointInfo]] = defaultdict(list)
        for one in kept.items:
            by_model[one.model_id].append(one)
        runs = [_run(who, info, by_model[info.model_id]) for info in page.items]
        return {"training_runs": runs, "cursor": told.cursor(limit, offset, page.total)}

    @router.get(RUN, responses=responses())
    async def training_run(model_id: str, who: Caller) -> dict[str, Any]:
        """One model."""
        info = await house.models.model(who, model_id)
        kept = await house.models.checkpoints(who, model_id=model_id, limit=None, offset=0)
        return _run(who, info, kept.items)

    @router.get(RUN + "/checkpoints", responses=responses())
    async def run_checkpoints(model_id: str, who: Caller) -> dict[str, Any]:
        """A model's checkpoints."""
        await house.models.model(who, model_id)
        page = await house.models.checkpoints(who, model_id=model_id, limit=None, offset=0)
        return {"checkpoints": [told.checkpoint(info) for info in page.items]}

    @router.get("/checkpoints", responses=responses())
    async def checkpoints(
        who: Caller, limit: told.Limit = 100, offset: told.Offset = 0
    ) -> dict[str, Any]:
        """All of the caller's checkpoints."""
        page = await house.models.checkpoints(who, model_id=None, limit=limit, offset=offset)
        shown = [told.checkpoint(info) for info in page.items]
        return {"checkpoints": shown, "cursor": told.cursor(limit, offset, page.total)}

    @router.delete(CHECKPOINT, status_code=204, responses=responses())
    async def delete(model_id: str, section: str, name: str, who: Caller) -> None:
        """Delete a checkpoint; samplers made from it go on."""
        await house.models.delete(who, _path(model_id, section, name))

    @router.post(CHECKPOINT + "/publish", status_code=204, responses=responses())
    async def publish(model_id: str, section: str, name: str, who: Caller) -> None:
        """Let everybody with a key read a checkpoint."""
        await house.models.publish(who, _path(model_id, section, name), public=True)

    @router.delete(CHECKPOINT + "/publish", status_code=204, responses=responses())
    async def unpublish(model_id: str, section: str, name: str, who: Caller) -> None:
        """Keep a checkpoint to oneself again."""
        await house.models.publish(who, _path(model_id, section, name), public=False)

    @router.put(CHECKPOINT + "/ttl", status_code=204, responses=responses())
    async def set_ttl(
        model_id: str,
        section: str,
        name: str,
        body: bodies.TtlBody,
        who: Caller,
    ) -> None:
        """Delete a checkpoint so many seconds from now; never if there are none."""
        path = _path(model_id, section, name)
        await house.models.expire(who, path, ttl_s=body.ttl_seconds)

    @router.post("/weights_info", responses=responses())
    async def weights_info(body: bodies.WeightsPath, who: Caller) -> dict[str, Any]:
        """What must be known of a checkpoint to load it."""
        info = await house.models.checkpoint(who, str(paths.parse(body.tinker_path)))
        return {
            "base_model": info.base_model,
            "is_lora": True,
            "lora_rank": info.lora.rank,
            **told.trained(info.lora),
            "optimizer_config": {"type": "adamw"},
        }

    @router.post("/copy_weights", responses=responses())
    async def copy_weights(body: bodies.CopyWeights, who: Caller) -> dict[str, str]:
        """A checkpoint, one's own or a public one, copied under a model of one's own."""
        if (body.session_id is None) != (body.model_seq_id is None):
            raise RequestError("give session_id and model_seq_id, or neither")
        path = await house.models.copy(
            who,
            str(paths.parse(body.source_path)),
            ttl_s=body.ttl_seconds,
            session_id=body.session_id,
            model_seq=body.model_seq_id,
        )
        return {"tinker_path": path}

    return router


def _run(who: Who, info: ModelInfo, kept: Sequence[CheckpointInfo]) -> dict[str, Any]:
    def newest(kind: CheckpointKind) -> dict[str, Any] | None:
        return next((told.checkpoint(one) for one in kept if one.kind is kind), None)

    return {
        "training_run_id": info.model_id,
        "base_model": info.base_model,
        "model_owner": who.tenant_id,
        "is_lora": True,
        "lora_rank": info.lora.rank,
        "corrupted": info.corrupted,
        "last_request_time": told.time(info.last_request_at),
        "last_checkpoint": newest(CheckpointKind.TRAINING),
        "last_sampler_checkpoint": newest(CheckpointKind.SAMPLER),
        "user_metadata": told.labels(info.user_metadata),
    }


def _path(model_id: str, section: str, name: str) -> str:
    return str(paths.of(model_id, f"{section}/{name}"))
