"""Closing an environment's source ends, and says what went wrong."""

import asyncio

import pytest
from launches import EvenSource

from plait.core.errors import EnvironmentFailure
from plait.envs import closing
from plait.envs.closing import close_environment, close_source


class Stuck(EvenSource):
    async def aclose(self) -> None:
        await asyncio.Event().wait()


class Broken(EvenSource):
    async def aclose(self) -> None:
        raise ZeroDivisionError


async def test_a_source_that_never_closes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_S", 0.05)
    error = await close_source(Stuck())
    assert isinstance(error, EnvironmentFailure)
    assert "did not return within" in str(error)


async def test_what_goes_wrong_is_said_and_not_raised() -> None:
    assert isinstance(await close_source(Broken()), ZeroDivisionError)
    assert await close_source(EvenSource()) is None


async def test_a_close_that_cannot_even_be_looked_up() -> None:
    class Odd:
        @property
        def close(self) -> None:
            raise SystemExit(3)

    failure = close_environment(Odd())  # type: ignore[arg-type]
    assert str(failure).startswith("its close() raised SystemExit: 3")
