"""The jobs API: jobs, runs, checkpoints, and the caller's account, under ``/v1``."""

import time

from fastapi import APIRouter

from plait.service.jobs_api import accounts, checkpoints, jobs, runs
from plait.service.jobs_api.desk import Desk
from plait.service.ports import House


def router(house: House, desk: Desk) -> APIRouter:
    """All routes of this door; ``desk`` is open while they are served."""
    api = APIRouter(prefix="/v1")
    api.include_router(jobs.router(house, desk))
    api.include_router(runs.router(house, desk, time.monotonic))
    api.include_router(checkpoints.router(house))
    api.include_router(accounts.router(house))
    return api
