"""An environment in a process of its own, as a source: it serves, it fails, it is started again."""

import asyncio
from pathlib import Path

import pytest
from apart_support import Told, opened
from apart_support import boxed as boxed
from apart_support import home as home

from plait.core.errors import ConfigError, EnvironmentFailure
from plait.envs.apart import source as source_module
from plait.envs.apart.replies import MAX_COLUMNS_BYTES


async def test_it_is_a_source_like_any_other(home: Path, byte_model: Path, boxed: bool) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        source = told.source
        assert (source.name, source.same_prompt, source.max_turns) == ("mine", False, 4)
        assert source.max_observation_tokens == 40
        env = source.make(2, "eval")
        prompt = told.tokenizer.decode(await env.start())
        assert prompt.startswith("eval 2 [")
        assert env.stop == (";",)
        assert env.columns() == {"answer": 2, "turns": 0, "closed": 0}
        more = await told.step(env, "more")
        assert (told.tokenizer.decode(more.tokens), more.reward, more.done) == ("more", None, False)
        last = await told.step(env, "right")
        assert (last.reward, last.done, last.info) == (1.0, True, {"why": "right"})
        env.close()
        env.close()
        assert env.columns() == {"answer": 2, "turns": 2, "closed": 0}
        assert (await told.started()).columns()["closed"] == 1, "once, and in the process"


async def test_one_sample_that_waits_holds_up_no_other(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        envs = [await told.started(i) for i in range(20)]
        slow = [asyncio.create_task(told.step(env, "wait")) for env in envs]
        for _ in range(3):
            assert (await told.says("right")).reward == 1.0
        assert not any(task.done() for task in slow)
        assert (await told.says("release")).reward == 20.0
        assert [turn.reward for turn in await asyncio.gather(*slow)] == [0.5] * 20


async def test_one_index_is_one_problem_in_every_process(
    home: Path, byte_model: Path, boxed: bool
) -> None:
    async def prompts(told: Told) -> list[tuple[int, ...]]:
        return [await told.source.make(i, s).start() for i in (0, 1) for s in ("train", "eval")]

    async with opened(home, byte_model, boxed=boxed) as told:
        first = await prompts(told)
        await told.fails("crashes")
        assert await prompts(told) == first
        assert told.source.n_started == 2
    async with opened(home, byte_model, boxed=boxed) as told:
        assert await prompts(told) == first
    assert len(set(first)) == 4


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("raises", "KeyError: 'no such tool'"),
        ("exits", "raised SystemExit: 3"),
        ("bomb", "MemoryError"),
        ("returns 7", "step() returned int: return a Turn"),
        ("returns Turn(reward='much')", "reward is str where a number belongs"),
        ("returns Turn(reward=float('nan'))", "rewards must be finite"),
        ("returns Turn(reward=10**400)", "rewards must be finite"),
        ("returns Turn(tokens='ab')", "hold str: give token ids"),
        ("returns Turn(tokens=(1, 999))", "999, which is no token of the model"),
        ("returns Turn(tokens=(-1,))", "-1, which is no token of the model"),
        ("returns Turn(info=3)", "info is int where a mapping belongs"),
        ("stops 'ab'", "stop is str: give a tuple of strings"),
        ("stops ['', 'b']", "stop holds what is no string, or an empty one"),
        ("stops ['x' * 9999]", "longer than 2000 characters"),
        ("absent", "AttributeError"),
    ],
)
async def test_what_goes_wrong_is_that_samples_error(
    home: Path, byte_model: Path, what: str, says: str
) -> None:
    async with opened(home, byte_model) as told:
        other = await told.started(1)
        assert says in await told.fails(what)
        assert (await told.step(other, "right")).reward == 1.0, "in the same process"
        assert told.source.n_started == 1


async def test_columns_are_told_when_they_are_asked_for(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        for index, says in (
            (5, "LookupError: no columns"),
            (6, f"at most {MAX_COLUMNS_BYTES} are taken"),
            (7, "object is no JSON"),
        ):
            env = await told.started(index)
            assert (await told.step(env, "right")).reward == 1.0
            with pytest.raises(EnvironmentFailure, match=says):
                env.columns()
        with pytest.raises(EnvironmentFailure, match="before it was started"):
            told.source.make(0, "train").columns()


async def test_a_process_that_ends_fails_what_was_under_way_and_no_more(
    home: Path, byte_model: Path, boxed: bool
) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        waiting = await told.started(1)
        task = asyncio.create_task(told.step(waiting, "wait"))
        await told.says("right")  # and so the other is under way
        assert "process ended (exit status 7)" in await told.fails("crashes")
        with pytest.raises(EnvironmentFailure, match="process ended"):
            await task
        assert (await told.says("right")).reward == 1.0
        with pytest.raises(EnvironmentFailure, match="process ended"):
            await told.step(waiting, "right")
        waiting.close()
        assert told.source.n_started == 2


async def test_a_process_that_keeps_ending_is_not_started_for_ever(
    home: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "MAX_DEATHS", 2)
    async with opened(home, byte_model) as told:
        for _ in range(3):
            assert (await told.says("right")).reward == 1.0
            await told.fails("crashes")
        assert (await told.says("more")).done is False
        with pytest.raises(EnvironmentFailure, match=r"ended 2 times in a row.*exit status 13"):
            await told.source.make(99, "train").start()
        assert "ended 2 times in a row" in await told.fails("right")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("absent:Env", "no module absent"),
        ("mine:Sourec", "did you mean mine:Source"),
        ("mine:exits", "SystemExit: 3"),
        ("mine:crashes", "its process ended as it was made (exit status 4)"),
        ("mine:hangs", "was not made within 1 s"),
        ("mine:nothing", "which has no name"),
        ("mine:Odd", "max_turns is str: give a whole number"),
        ("mine:Reverse", "has no key colour"),
    ],
)
async def test_what_cannot_be_made_says_why(
    home: Path, byte_model: Path, target: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target == "mine:hangs":
        monkeypatch.setattr(source_module, "MAKE_S", 1.0)
    with pytest.raises(ConfigError) as failure:
        async with opened(home, byte_model, target=target, colour=1):
            pass
    assert says in str(failure.value)
    assert target in str(failure.value)


async def test_a_one_turn_environment_without_rewards_says_so(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model, target="mine:Reverse") as told:
        assert (told.source.scores, told.source.max_turns, told.source.same_prompt) == (
            False,
            1,
            True,
        )


async def test_a_closed_source_starts_nothing(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        pass
    with pytest.raises(EnvironmentFailure, match="is closed"):
        await told.source.make(0, "train").start()
    assert told.source.n_started == 1
