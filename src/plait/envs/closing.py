"""Closing: end an environment's source, within a deadline, whatever it does."""

import asyncio

from plait.core.errors import EnvironmentFailure
from plait.envs.protocol import TaskSource

CLOSE_S = 20.0
"""Built-in tools end within a few seconds; a job that has ended must not wait for ever."""


async def close_source(source: TaskSource) -> Exception | None:
    """What went wrong, if anything: it is to be reported and changes nobody's outcome."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await source.aclose()
    except TimeoutError:
        return EnvironmentFailure(f"its aclose() did not return within {CLOSE_S:.0f} s")
    except Exception as error:
        return error
    return None
