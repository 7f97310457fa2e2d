"""The built-in ``tiny-*`` tasks, small enough for the ``tiny`` model to learn in seconds.

``tiny-sum``: one turn. ``tiny-sort``: a checker answers "no" and lets the policy try again, and
each retry keeps a quarter of the reward; most samples end in one or two turns, some reach the
fifth. ``tiny-lookup``: the value asked for is in a table that only a query (``?bob;``) opens.

Rewards lie in [0, 1]. ``latency_s`` is the declared time of each check or query; nothing else
waits. Text is plain and every turn ends at ``;``, so any tokenizer will do. Problems:
``tiny_problems``.
"""

import asyncio
import functools
import random
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from plait.envs.protocol import Environment, TaskSource, Turn
from plait.envs.tiny_problems import (
    STOP,
    Problem,
    draw,
    lookup_problem,
    sort_problem,
    sum_problem,
)
from plait.models.tokenizer import Tokenizer
from plait.sections import read_section

RETRY_KEEPS = 0.25
"""Share of the reward that each retry of ``tiny-sort`` keeps: being right at once must pay."""

RETRY = "no="
UNKNOWN = "none="


class SumConfig(BaseModel):
    """``tiny-sum``: ``latency_s`` is the time of the check."""

    model_config = ConfigDict(extra="forbid")
    latency_s: float = Field(default=0.0, ge=0, le=60)


class SortConfig(SumConfig):
    """``tiny-sort``: letters to sort, and how many tries there are."""

    length: int = Field(default=4, ge=3, le=5)
    max_turns: int = Field(default=5, ge=1, le=8)


class LookupConfig(SumConfig):
    """``tiny-lookup``: ``tool_calls`` queries are answered; ``latency_s`` is the time of each."""

    tool_calls: int = Field(default=3, ge=1, le=5)


class _Env:
    """What the three have in common: a problem, a tokenizer, a wait."""

    def __init__(self, problem: Problem, tokenizer: Tokenizer, config: Any) -> None:
        self._problem = problem
        self._tokenizer = tokenizer
        self._config = config
        self._n_turns = 0

    async def start(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        return self._tokenizer.prompt(self._problem.prompt)

    async def step(self, tokens: tuple[int, ...]) -> Turn:
        """Judge the text before the stop; what follows it does not count."""
        self._n_turns += 1
        text = self._tokenizer.decode(tokens).partition(STOP)[0].strip()
        return await self._judge(text)

    async def _judge(self, text: str) -> Turn:
        await self._wait()
        return self._end(1.0 if text == self._problem.answer else 0.0)

    async def _wait(self) -> None:
        if self._config.latency_s:
            await asyncio.sleep(self._config.latency_s)

    def _end(self, reward: float, **info: Any) -> Turn:
        return Turn(reward=reward, info={"turns": self._n_turns, **info})

    def _more(self, text: str) -> Turn:
        return Turn(tokens=self._tokenizer.encode(text), done=False)

    def columns(self) -> Mapping[str, Any]:
        """The answer, for reward functions."""
        return {"answer": self._problem.answer}

    @property
    def stop(self) -> tuple[str, ...]:
        return (STOP,)


class SumEnv(_Env):
    """One turn: right or not."""


class SortEnv(_Env):
    """Try until it is right or the tries are used up."""

    async def _judge(self, text: str) -> Turn:
        await self._wait()
        if text == self._problem.answer:
            return self._end(RETRY_KEEPS ** (self._n_turns - 1))
        return self._end(0.0) if self._n_turns >= self._config.max_turns else self._more(RETRY)


class LookupEnv(_Env):
    """Queries begin with ``?``; anything else is the answer."""

    _calls = 0

    async def _judge(self, text: str) -> Turn:
        if not text.startswith("?"):
            right = text == self._problem.answer
            return self._end(float(right and self._calls > 0), tool_calls=self._calls)
        if self._calls >= self._config.tool_calls:
            return self._end(0.0, tool_calls=self._calls)
        self._calls += 1
        await self._wait()
        found = text[1:].strip() == self._problem.secret
        return self._more(f"{self._problem.answer}=" if found else UNKNOWN)


class TinySource:
    """Environments of one task by index."""

    same_prompt = True

    def __init__(
        self,
        name: str,
        env: Callable[[Problem], Environment],
        problem: Callable[[random.Random], Problem],
        *,
        seed: int,
        max_turns: int,
    ) -> None:
        self.name = name
        self.max_turns = max_turns
        self._env = env
        self._problem = problem
        self._seed = seed

    def make(self, index: int, split: str) -> Environment:
        """A fresh environment for problem ``index`` of ``split``."""
        return self._env(draw(self._problem, self.name, self._seed, split, index))

    async def aclose(self) -> None:
        """Nothing to end."""


def sum_factory(config: Mapping[str, Any], tokenizer: Tokenizer, seed: int) -> TaskSource:
    """``tiny-sum``."""
    section = read_section(SumConfig, config, "environment tiny-sum")
    env = functools.partial(SumEnv, tokenizer=tokenizer, config=section)
    return TinySource("tiny-sum", env, sum_problem, seed=seed, max_turns=1)


def sort_factory(config: Mapping[str, Any], tokenizer: Tokenizer, seed: int) -> TaskSource:
    """``tiny-sort``."""
    section = read_section(SortConfig, config, "environment tiny-sort")
    env = functools.partial(SortEnv, tokenizer=tokenizer, config=section)
    problem = functools.partial(sort_problem, length=section.length)
    return TinySource("tiny-sort", env, problem, seed=seed, max_turns=section.max_turns)


def lookup_factory(config: Mapping[str, Any], tokenizer: Tokenizer, seed: int) -> TaskSource:
    """``tiny-lookup``."""
    section = read_section(LookupConfig, config, "environment tiny-lookup")
    env = functools.partial(LookupEnv, tokenizer=tokenizer, config=section)
    # Every query may be answered, then comes the answer.
    return TinySource(
        "tiny-lookup", env, lookup_problem, seed=seed, max_turns=section.tool_calls + 1
    )
