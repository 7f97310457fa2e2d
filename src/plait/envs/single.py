"""Single: base class of one-turn environments: make a problem, score a reply, and that is all.

A subclass is a whole environment, named ``module:Class`` in a job file::

    class Reverse(SingleTurn):
        def generate(self, rng):
            word = "".join(rng.choices("abcde", k=5))
            return Problem(prompt=f"Write {word} backwards.", answer=word[::-1])

        def score(self, problem, completion):
            return float(completion.strip() == problem.answer)

Keys of its own come from a pydantic model named ``Config``. Problems are drawn so that those of
``eval`` never occur in ``train``; a subclass with a fixed set of problems overrides ``problem``
instead of ``generate``, and then keeps the two apart itself.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from plait.core.errors import ConfigError, EnvironmentFailure
from plait.envs.protocol import Turn
from plait.envs.split import EVAL, TRAIN, draw_on_side, rng_of
from plait.models.tokenizer import Tokenizer
from plait.sections import read_section

KEPT_PROBLEMS = 256
"""A group's samples ask for one problem each, close together: a step's problems are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem. ``columns`` go to reward functions, ``answer`` among them if there is one."""

    prompt: str
    answer: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()
    """A conversation to start from in place of ``prompt`` (chat models only)."""
    data: Any = None
    """Whatever ``score`` needs besides."""


class NoKeys(BaseModel):
    """The configuration of an environment that has none."""

    model_config = ConfigDict(extra="forbid")


class SingleTurn:
    """A ``TaskSource`` and its own ``TaskFactory``: ``Class(config, tokenizer, seed)``."""

    Config: ClassVar[type[BaseModel]] = NoKeys
    same_prompt: bool = True
    max_turns: int = 1
    stop: tuple[str, ...] = ()
    system: str | None = None

    def __init__(self, config: Mapping[str, Any], tokenizer: Tokenizer, seed: int) -> None:
        self.name = type(self).__name__
        self.config: Any = read_section(self.Config, config, f"environment {self.name}")
        self.tokenizer = tokenizer
        self.seed = seed
        self._kept: OrderedDict[tuple[int, str], Problem] = OrderedDict()

    def generate(self, rng: random.Random) -> Problem:
        """A problem from ``rng`` and nothing else."""
        raise ConfigError(f"environment {type(self).__name__} must define generate() or problem()")

    def score(self, problem: Problem, completion: str) -> float | None:
        """The reward of a reply; ``None`` leaves it to the job's reward functions."""
        return None

    @property
    def scores(self) -> bool:
        """False if every reward is left to the job's reward functions."""
        own = type(self)
        return own.score is not SingleTurn.score or own.grade is not SingleTurn.grade

    def problem(self, index: int, split: str) -> Problem:
        """Problem ``index`` of ``split``: a function of these and the seed."""
        return draw_on_side(
            lambda i: self.generate(rng_of(self.seed, split, index, i)), lambda p: p.prompt, split
        )

    async def load(self, index: int, split: str) -> Problem:
        """``kept``; override it where it must wait."""
        return self.kept(index, split)

    def kept(self, index: int, split: str) -> Problem:
        """``problem``, kept for the rest of its group."""
        key = (index, split)
        if key not in self._kept:
            self._kept[key] = self.problem(index, split)
            if len(self._kept) > KEPT_PROBLEMS:
                self._kept.popitem(last=False)
        return self._kept[key]

    async def grade(self, problem: Problem, completion: str) -> float | None:
        """``score``; override it where it must wait."""
        return self.score(problem, completion)

    def make(self, index: int, split: str) -> "SingleTurnEnv":
        """A fresh environment for problem ``index`` of ``split``."""
        if split not in (TRAIN, EVAL):
            raise ConfigError(f"there is no split {split}: use {TRAIN} or {EVAL}")
        return SingleTurnEnv(self, index, split)

    async def aclose(self) -> None:
        """Nothing to end."""


class SingleTurnEnv:
    """One problem for one sample."""

    def __init__(self, source: SingleTurn, index: int, split: str) -> None:
        self.source = source
        self._index = index
        self._split = split
        self._problem: Problem | None = None

    @property
    def problem(self) -> Problem:
        if self._problem is None:
            raise EnvironmentFailure("the environment was asked before it was started")
        return self._problem

    async def start(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        self._problem = problem = await self.source.load(self._index, self._split)
        if problem.messages:
            return self.source.tokenizer.chat([dict(m) for m in problem.messages])
        return self.source.tokenizer.prompt(problem.prompt, system=self.source.system)

    async def step(self, tokens: tuple[int, ...]) -> Turn:
        """Score the reply; it is the last."""
        reply = self.source.tokenizer.decode(tokens)
        return Turn(reward=finite(await self.source.grade(self.problem, reply), self.source.name))

    def columns(self) -> Mapping[str, Any]:
        """The problem's columns and its answer."""
        problem = self.problem
        own = {} if problem.answer is None else {"answer": problem.answer}
        return {**own, **problem.columns}

    @property
    def stop(self) -> tuple[str, ...]:
        return self.source.stop


def finite(reward: float | None, name: str) -> float | None:
    """``reward``, which must be a finite number or ``None``."""
    if reward is not None and not math.isfinite(reward):
        raise EnvironmentFailure(f"environment {name} gave the reward {reward}: it must be finite")
    return reward
