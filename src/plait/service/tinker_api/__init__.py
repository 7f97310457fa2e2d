"""The Tinker API: what the official SDK speaks, over the house that every door shares.

Routers by noun; ``codec`` is what the house reads and writes this door's bodies with.
"""

import secrets
import time
from collections.abc import Callable

from fastapi import APIRouter

from plait.service.heavy import Heavy
from plait.service.ports import House
from plait.service.tinker_api import (
    clients,
    files,
    futures,
    losses,
    runs,
    sampling,
    sessions,
    training,
)
from plait.service.typed import typed


def router(
    house: House, *, secret: bytes | None = None, wall: Callable[[], float] = time.time
) -> APIRouter:
    """Every endpoint under ``/api/v1``. ``secret`` signs download URLs; else one of this life."""
    api = APIRouter(prefix="/api/v1", tags=["tinker"])
    for module in (clients, training, runs):
        api.include_router(module.routes(house))
    route = typed(Heavy())
    for module in (sessions, sampling, losses, futures):
        api.include_router(module.routes(house, route))
    api.include_router(files.routes(house, secret or secrets.token_bytes(32), wall))
    return api
