"""App: the HTTP edge of a house: the three doors behind one middleware.

A door is a package with ``router(house) -> APIRouter``. What belongs to the app as a whole is here:
health, the OpenAPI document, the errors' shape, and the jobs that run as long as the app does.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.types import ASGIApp

from plait.service import errors, jobs_api, openai_api, tinker_api
from plait.service.jobs_api.desk import Desk
from plait.service.middleware import Edge
from plait.service.ports import House

DESCRIPTION = (
    "Many RL post-training jobs on the accelerators you already have: the Tinker API under "
    "`/api/v1`, jobs and accounts under `/v1`, and an OpenAI-compatible API under `/v1`."
)


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


def create_app(
    house: House, *, allow_code: bool = False, wall: Callable[[], float] = time.time
) -> ASGIApp:
    """The app that serves a house, which must be open while the app runs.

    ``allow_code``: jobs may bring environments and reward functions of their own, which run in
    a sandbox.
    """
    desk = Desk(house, allow_code=allow_code, wall=wall)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with desk:
            yield

    app = FastAPI(
        title="plait",
        version=_version(),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    errors.install(app)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> Health:
        """The process answers."""
        return Health()

    app.include_router(jobs_api.router(house, desk))
    app.include_router(openai_api.router(house))
    app.include_router(tinker_api.router(house))
    _make_routes(app)

    def context() -> int:
        return max((offer.max_context for offer in house.offers()), default=0)

    return Edge(app, house.access, context=context)


def _make_routes(app: FastAPI) -> None:
    """FastAPI makes what routers have when the first request is matched, for 0.15 s: it would hold
    up everybody who comes with it, so it is made before anybody does."""
    nobody = {"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []}
    for route in app.router.routes:
        route.matches(nobody)


def _version() -> str:
    try:
        return version("plait")
    except PackageNotFoundError:
        return "unknown"
