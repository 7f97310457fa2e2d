"""Losses: the endpoint by which a client hands in a loss of its own.

A loss that is refused is refused at once, with the first thing that is wrong with it, and its
number stays unused: nothing waits for it. One that is taken is kept before it is promised.
"""

import asyncio

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel

from plait.core import custom_graphs
from plait.core.custom_losses import CustomLoss
from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.ports import House
from plait.service.tinker_api import bodies


class LossPromise(BaseModel):
    """What a client polls for."""

    request_id: str


def routes(house: House, route: type[APIRoute]) -> APIRouter:
    """The endpoint, over a house; ``route`` reads what may be large."""
    router = APIRouter(route_class=route)

    @router.post("/create_custom_loss", responses=responses(410))
    async def create_custom_loss(body: bodies.CreateCustomLoss, who: Caller) -> LossPromise:
        """A loss as a traced graph; gradients of the same session's models may name it."""
        loss = await asyncio.to_thread(_loss, body)
        number = body.custom_loss_seq_id
        made = await house.requests.create_loss(who, body.session_id, number, loss)
        return LossPromise(request_id=made)

    return router


def _loss(body: bodies.CreateCustomLoss) -> CustomLoss:
    return custom_graphs.read(body.model_dump())
