"""Opening: start a source that is to be, and make an environment's first prompt within a deadline,
whatever it does."""

import asyncio

from plait.core.errors import EnvironmentFailure
from plait.envs.apart.source import ApartSource
from plait.envs.contain import contained
from plait.envs.protocol import Environment, TaskSource

START_S = 1200.0
"""The first start of a tool may build an index, which is given 900 s; a job must not wait for
ever."""


async def open_source(source: TaskSource) -> None:
    """Start the process of a source that has one, before anything else is asked of it; ConfigError
    if it cannot be made. (By its class: a user's source may call anything ``open``.)"""
    if isinstance(source, ApartSource):
        await source.open()


async def start_environment(env: Environment) -> object:
    """What ``start()`` returns; EnvironmentFailure if it does not within ``START_S``."""
    with contained("the environment's start()"):
        try:
            async with asyncio.timeout(START_S) as limit:
                return await env.start()
        except TimeoutError:
            if not limit.expired():
                raise
            raise EnvironmentFailure(
                f"the environment's start() did not return within {START_S:g} s"
            ) from None
