"""plait.envs.contain: what stops plait itself passes, nothing else of a user's code does."""

import asyncio

import pytest

from plait.core.errors import ConfigError, EnvironmentFailure, ModelError
from plait.core.text import told
from plait.envs.contain import contained, loading


async def test_ordinary_exceptions_pass() -> None:
    with pytest.raises(KeyError), contained("it"):
        raise KeyError("x")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_all_others_are_failures(kind: type[BaseException]) -> None:
    with pytest.raises(EnvironmentFailure, match=f"it raised {kind.__name__}"), contained("it"):
        raise kind


async def test_a_deadline_and_a_second_interrupt_pass() -> None:
    async def late() -> None:
        async with asyncio.timeout(0.01):
            with contained("it"):
                await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await late()

    async def interrupted() -> str:
        try:
            with contained("it"):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    raise KeyboardInterrupt from None
        except KeyboardInterrupt:
            return "passed"
        return "lost"

    task = asyncio.create_task(interrupted())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "passed"


def test_what_loading_says() -> None:
    for raised in (SystemExit(3), ValueError("no")):
        with (
            pytest.raises(ConfigError, match=r"mine: \w+: (3|no) \(test_envs_contain\.py:\d+\)"),
            loading("mine"),
        ):
            raise raised
    with pytest.raises(ModelError), loading("mine"):
        raise ModelError("ours says enough")
    with pytest.raises(KeyboardInterrupt), loading("mine"):
        raise KeyboardInterrupt  # no task: Ctrl-C


def test_words_that_any_file_can_hold() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert told(ValueError("a\ud800")) == "ValueError: a\\ud800"
    assert told(Odd()) == "Odd"
    assert told(ModelError("m")) == "m"
