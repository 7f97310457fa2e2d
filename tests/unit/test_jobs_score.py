"""plait.jobs.score: parts add up, errors stay errors, and the rollout's deadline bounds rewards."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from plait.jobs.episode import Episode
from plait.jobs.score import Scorer
from plait.jobs.spec import JobSpec
from plait.rewards.outcome import RewardOutcome


class Words:
    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, tokens))


class Env:
    def columns(self) -> dict[str, Any]:
        return {}


class Graders:
    """A pool whose functions take as long as their names say, or fail."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def score(
        self, name: str, prompts: Any, completions: Sequence[str], *_: Any, **__: Any
    ) -> list[RewardOutcome]:
        word = name.partition(":")[2]
        try:
            if word == "fails":
                raise RuntimeError("not ours")
            await asyncio.sleep({"slow": 0.3, "hangs": 60.0}.get(word, 0.0))
        finally:
            self.ended.append(word)
        return [RewardOutcome(value=0.5) for _ in completions]


def scorer(graders: Graders, *functions: str, deadline_s: float = 5.0) -> Scorer:
    spec = JobSpec.model_validate(
        {
            "name": "a",
            "environment": {"name": "tiny-sum"},
            "steps": 1,
            "rewards": [{"function": f"mine:{name}"} for name in functions],
            "limits": {"rollout_deadline_s": deadline_s},
        }
    )
    return Scorer(graders, spec, Words(), outside=lambda *_: None, now=time.monotonic)  # type: ignore[arg-type]


def group(*left_s: float) -> list[Episode]:
    return [
        Episode(index=0, sample=i, prompt=(1,), reward=1.0, left_s=left)
        for i, left in enumerate(left_s)
    ]


def envs(group: list[Episode]) -> list[Any]:
    return [Env() for _ in group]


async def test_parts_add_up_with_the_environments_own() -> None:
    episodes = group(5.0, 5.0)
    await scorer(Graders(), "fast", "quick").score([episodes], [envs(episodes)])
    assert [e.reward for e in episodes] == [2.0, 2.0]


async def test_rewards_get_what_the_rollout_has_left() -> None:
    graders, episodes = Graders(), group(0.05, 0.05)
    async with asyncio.timeout(5):
        await scorer(graders, "hangs").score([episodes], [envs(episodes)])
    assert graders.ended == ["hangs"], "it was not left running"
    assert [e.reward for e in episodes] == [None, None]
    assert {e.error for e in episodes} == {"rollout took longer than 5 s"}


async def test_a_sample_that_used_up_its_own_time_costs_its_neighbours_nothing() -> None:
    episodes = group(0.1, 60.0)
    await scorer(Graders(), "slow").score([episodes], [envs(episodes)])
    assert [e.reward for e in episodes] == [None, 1.5]
    assert episodes[0].error == "rollout took longer than 5 s"


async def test_an_error_of_a_grader_leaves_no_other_one_running() -> None:
    graders, episodes = Graders(), group(60.0)
    with pytest.raises(ExceptionGroup):
        await scorer(graders, "hangs", "fails").score([episodes], [envs(episodes)])
    assert sorted(graders.ended) == ["fails", "hangs"]


async def test_a_sample_whose_columns_differ_is_an_error_of_its_own() -> None:
    class Odd(Env):
        def columns(self) -> dict[str, Any]:
            return {"answer": 1}

    episodes = group(5.0, 5.0, 5.0)
    await scorer(Graders(), "fast").score([episodes], [[Env(), Odd(), Env()]])  # type: ignore[list-item]
    assert [e.reward for e in episodes] == [1.5, None, 1.5]
    assert (
        episodes[1].error == "the environment gave its samples different columns: none and answer"
    )
