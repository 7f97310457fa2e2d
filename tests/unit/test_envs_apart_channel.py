"""The channel to an environment's process: who is given up, who misuses it."""

import asyncio
from pathlib import Path

import pytest
from apart_support import boxed as boxed
from apart_support import home as home
from apart_support import opened, until

from plait.core.errors import EnvironmentFailure
from plait.envs.apart import channel as channel_module
from plait.envs.apart.replies import MAX_REPLY_BYTES


async def test_a_blocked_loop_is_ended(
    home: Path, byte_model: Path, boxed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "GRACE_S", 0.2)
    async with opened(home, byte_model, boxed=boxed) as told:
        env, other = await told.started(), await told.started(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await told.step(env, "blocks")
        with pytest.raises(EnvironmentFailure, match="event loop was blocked"):
            await told.step(other, "right")
        assert (await told.says("right")).reward == 1.0


async def test_a_sample_that_is_given_up_leaves_the_others(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        env, other = await told.started(), await told.started(1)
        slow = asyncio.create_task(told.step(other, "wait"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await told.step(env, "wait")
        env.close()
        channel = told.source._channel
        assert channel is not None
        await until(lambda: len(channel._asked) == 1)
        assert channel._given_up == {}, "it has stopped in time: nothing is going to be ended"
        await told.says("release")
        assert (await slow).reward == 0.5
        assert told.source.n_started == 1


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("writes 1 5", "answered what it was not asked"),
        (f"writes 2 {MAX_REPLY_BYTES + 1}", f"at most {MAX_REPLY_BYTES} are read"),
        (f"returns Turn(tokens=(1,) * {MAX_REPLY_BYTES})", f"at most {MAX_REPLY_BYTES} are read"),
    ],
)
async def test_a_channel_that_is_misused_ends(
    home: Path, byte_model: Path, what: str, says: str
) -> None:
    async with opened(home, byte_model) as told:
        assert says in await told.fails(what)
        assert (await told.says("right")).reward == 1.0


async def test_rubbish_on_the_channel_is_that_samples_error(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        env = await told.started()
        assert told.source._channel is not None
        number = told.source._channel._n + 1
        with pytest.raises(EnvironmentFailure, match="sent what is no answer"):
            await told.step(env, f"writes {number} 9")


async def test_a_copy_that_was_forked_neither_reads_nor_answers(
    home: Path, byte_model: Path, boxed: bool
) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        for when in ("now", "later", "now"):
            assert (await told.says(f"forks {when}")).reward == 0.25
            for _ in range(50):
                assert (await told.says("right")).reward == 1.0
        assert told.source.n_started == 1
