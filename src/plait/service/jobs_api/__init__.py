"""The jobs API: jobs, runs, checkpoints, and the caller's account, under ``/v1``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter

from plait.service.ports import House


def router(house: House) -> APIRouter:
    """All routes of this door."""
    return APIRouter(prefix="/v1")


@asynccontextmanager
async def open_desk(house: House) -> AsyncIterator[None]:
    """Jobs run as long as this is open."""
    yield
