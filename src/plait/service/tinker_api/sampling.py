"""Sampling: samplers, and samples from them. A sample needs no place in a model's line."""

from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from plait.core.errors import NotFound, RequestError, RunEnded
from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.ports import House, Who
from plait.service.tinker_api import bodies, samples


def routes(house: House, route: type[APIRoute]) -> APIRouter:
    """The endpoints, over a house; ``route`` reads what may be large."""
    router = APIRouter(route_class=route)

    @router.post("/create_sampling_session", responses=responses())
    async def create_sampling_session(body: bodies.OpenSampler, who: Caller) -> dict[str, str]:
        """A sampler of a base model or of a checkpoint."""
        if body.base_model is None and body.model_path is None:
            raise RequestError("give a base_model or a model_path")
        sampler_id = await house.clients.open_sampler(
            who,
            body.session_id,
            body.sampling_session_seq_id,
            base_model=body.base_model,
            path=body.model_path,
        )
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    @router.post("/join_sampling_session", responses=responses())
    async def join_sampling_session(body: bodies.Sampler, who: Caller) -> dict[str, Any]:
        """A number for one more client of a sampler."""
        counter = await house.clients.join(who, body.sampling_session_id)
        return {"type": "join_sampling_session", "client_counter": counter}

    @router.get("/samplers/{sampler_id}", responses=responses())
    async def get_sampler(sampler_id: str, who: Caller) -> dict[str, Any]:
        """What a sampler samples from."""
        return dict(await house.clients.sampler(who, sampler_id))

    @router.post("/asample", responses=responses())
    async def asample(body: bodies.SampleBody, who: Caller) -> dict[str, Any]:
        """Continuations of a prompt: a promise, and an id for each of them."""
        room = 0
        if body.sampling_params.max_tokens is None:
            room = await _max_context(house, who, body.sampling_session_id)
        work = samples.read(body, max_context=room)
        try:
            request_id = await house.requests.sample(
                who, body.sampling_session_id, body.seq_id, work
            )
        except RunEnded as error:
            raise RequestError(str(error)) from None
        ids = [f"{request_id}/{i}" for i in range(work.n)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    return router


async def _max_context(house: House, who: Who, sampler_id: str) -> int:
    base_model = (await house.clients.sampler(who, sampler_id))["base_model"]
    for offer in house.offers():
        if offer.name == base_model:
            return offer.max_context
    raise NotFound(f"base model {base_model} is not served any more")
