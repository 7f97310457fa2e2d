"""Opening: make an environment's first prompt within a deadline, whatever it does."""

import asyncio

from plait.core.errors import EnvironmentFailure
from plait.envs.contain import contained
from plait.envs.protocol import Environment

START_S = 1200.0
"""The first start of a tool may build an index, which is given 900 s; a job must not wait for
ever."""


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
