"""Training: the endpoints that make a model and change it. All answer with a promise."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from plait.core.errors import NotFound, RequestError
from plait.service import names
from plait.service.auth import Caller
from plait.service.bodies import TooManyParts, check_json
from plait.service.errors import responses
from plait.service.heavy import Heavy
from plait.service.ports import House, Who
from plait.service.tinker_api import batches, bodies, parts
from plait.service.tinker_api.submitting import (
    Promise,
    body_of,
    numbered,
    read,
    read_numbered,
    soon,
    submit,
    use_up,
)
from plait.service.typed import THREAD_BYTES
from plait.service.work import Kind

PROTOBUF = "application/x-protobuf"


def routes(house: House) -> APIRouter:
    """The endpoints, over a house."""
    router, heavy = APIRouter(), Heavy()

    @router.post("/create_model", **body_of(bodies.CreateModel))
    async def create_model(request: Request, who: Caller) -> Promise:
        """A new adapter on a base model."""
        raw = await request.body()
        body = await read(bodies.CreateModel, raw)
        model_id = names.model_id(body.session_id, body.model_seq_id)
        return await submit(house, who, model_id, 0, Kind.CREATE_MODEL, raw)

    @router.post("/get_info", responses=responses())
    async def get_info(body: bodies.Model, who: Caller) -> dict[str, Any]:
        """What a model is."""
        info = await house.models.model(who, body.model_id)
        return {
            "type": "get_info",
            "model_id": info.model_id,
            "model_name": info.base_model,
            "is_lora": True,
            "lora_rank": info.lora.rank,
            "model_data": {
                "model_name": info.base_model,
                "tokenizer_id": _tokenizer(house, info.base_model),
            },
            "optimizer_config": {"type": "adamw"},
        }

    @router.post("/forward_backward", **body_of(bodies.Pass, protobuf=True))
    async def forward_backward(request: Request, who: Caller) -> Promise:
        """Gradients of a batch, or only its log-probs (``forward_only``)."""
        return await _pass(house, heavy, who, request, forward_only=False)

    @router.post("/forward", **body_of(bodies.Pass))
    async def forward(request: Request, who: Caller) -> Promise:
        """Log-probs of a batch, as clients before 0.25 ask for them."""
        return await _pass(house, heavy, who, request, forward_only=True)

    @router.post("/optim_step", **body_of(bodies.OptimStep))
    async def optim_step(request: Request, who: Caller) -> Promise:
        """One optimizer step."""
        return await numbered(house, who, request, Kind.OPTIM_STEP, bodies.OptimStep)

    @router.post("/save_weights", **body_of(bodies.SaveWeights))
    async def save_weights(request: Request, who: Caller) -> Promise:
        """Keep the model's state, optimizer included."""
        return await numbered(house, who, request, Kind.SAVE_WEIGHTS, bodies.SaveWeights)

    @router.post("/save_weights_for_sampler", **body_of(bodies.SaveForSampler))
    async def save_weights_for_sampler(request: Request, who: Caller) -> Promise:
        """Keep the model's weights for sampling, under a name or for one sampler."""
        return await numbered(house, who, request, Kind.SAVE_SAMPLER, bodies.SaveForSampler)

    @router.post("/save_weights_external", **body_of(bodies.SaveExternal))
    async def save_weights_external(request: Request, who: Caller) -> Promise:
        """Keep the model's weights as PEFT files to be downloaded."""
        return await numbered(house, who, request, Kind.SAVE_EXTERNAL, bodies.SaveExternal)

    @router.post("/load_weights", **body_of(bodies.LoadWeights))
    async def load_weights(request: Request, who: Caller) -> Promise:
        """A checkpoint into a model, or as a new one (``session_id``, ``model_seq_id``)."""
        raw = await request.body()
        body = await read_numbered(house, who, bodies.LoadWeights, raw)
        if body.model_id is not None and body.seq_id is not None:
            return await submit(house, who, body.model_id, body.seq_id, Kind.LOAD_WEIGHTS, raw)
        if body.session_id is None or body.model_seq_id is None:
            raise RequestError("give model_id and seq_id, or session_id and model_seq_id")
        model_id = names.model_id(body.session_id, body.model_seq_id)
        return await submit(house, who, model_id, 0, Kind.LOAD_MODEL, raw)

    return router


async def _pass(
    house: House, heavy: Heavy, who: Who, request: Request, *, forward_only: bool
) -> Promise:
    raw = await request.body()
    is_json = not request.headers.get("content-type", "").startswith(PROTOBUF)
    try:
        if len(raw) > THREAD_BYTES:
            async with heavy.turn(who.tenant_id):
                asked = await asyncio.to_thread(_asked, raw, is_json, forward_only)
        else:
            asked = _asked(raw, is_json, forward_only)
    except TooManyParts:
        raise
    except RequestError as error:
        at = await soon(raw, bodies.address if is_json else parts.address, raw)
        await use_up(house, who, at, str(error))
        raise
    return await submit(house, who, *asked)


def _asked(raw: bytes, is_json: bool, forward_only: bool) -> tuple[str, int, Kind, bytes]:
    """Model, number, kind and protobuf body of a pass over data."""
    if is_json:
        check_json(raw, numbers=True)
        raw = batches.from_json(bodies.any_object(raw), forward_only=forward_only)
    parts.check(raw)
    message = batches.parse(raw)
    if message.seq_id < 1 or not message.model_id:
        raise RequestError("give a model_id, and a seq_id of 1 or more")
    kind = Kind.FORWARD if message.forward_only else Kind.FORWARD_BACKWARD
    return message.model_id, message.seq_id, kind, raw


def _tokenizer(house: House, base_model: str) -> str:
    """Where a client can read the tokenizer from, if it is on this machine."""
    for offer in house.offers():
        if offer.name == base_model:
            return offer.model_dir
    raise NotFound(f"base model {base_model} is not served any more")
