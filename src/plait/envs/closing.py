"""Closing: end an environment, or its source within a deadline, whatever they do."""

import asyncio

from plait.core.errors import EnvironmentFailure
from plait.envs.contain import contained
from plait.envs.protocol import Closing, Environment, TaskSource

CLOSE_S = 20.0
"""Built-in tools end within a few seconds; a job that has ended must not wait for ever."""


async def close_source(source: TaskSource) -> Exception | None:
    """What went wrong, if anything: it is to be reported and changes nobody's outcome."""
    try:
        async with asyncio.timeout(CLOSE_S):
            with contained("its aclose()"):
                await source.aclose()
    except TimeoutError:
        return EnvironmentFailure(f"its aclose() did not return within {CLOSE_S:.0f} s")
    except Exception as error:
        return error
    return None


def close_environment(env: Environment) -> Exception | None:
    """Tell an environment that its sample has ended; what went wrong, if anything."""
    try:
        with contained("its close()"):
            if isinstance(env, Closing):  # which looks for the attribute, a property maybe
                env.close()
    except Exception as error:
        return error
    return None
