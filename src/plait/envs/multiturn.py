"""Multi-turn: arithmetic with a checker that says "too high" or "too low" and grants another try.

How many tries a problem allows is drawn from ``TRIES``, and problems with more tries are harder.
So whatever the policy can do, most samples end in one or two turns and some reach four or five, as
in multi-turn workloads (JigsawRL: tools). The reward is 1 for a right answer at once and loses the
share ``1 - retry_keeps`` with each retry; it is 0 when all tries are used up.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from plait.core.errors import ConfigError
from plait.envs.answers import extract_answer
from plait.envs.chat import continue_turn
from plait.envs.protocol import Turn
from plait.envs.split import EVAL, TRAIN, draw_on_side, rng_of
from plait.models.tokenizer import Tokenizer
from plait.sections import read_section

TRIES = (1, 2, 3, 4, 5)
TRIES_PERCENT = (45, 30, 10, 8, 7)
"""How often: three quarters allow one or two. Of 40 games of the untrained SmolLM2-135M, 18, 10, 5,
5 and 2 took one to five turns; its mean reward was 0.19."""
LARGEST_NUMBER = 99
"""Digits beyond two make the numbers of tokens, and so the work, depend on the tokenizer."""


class MultiTurnConfig(BaseModel):
    """``multi-turn``: how hard, how many tries, how much a retry costs."""

    model_config = ConfigDict(extra="forbid")
    largest: Annotated[int, Field(ge=5, le=LARGEST_NUMBER)] = 9
    """Largest number in a problem with one try; each further try adds a quarter to it."""
    max_turns: Annotated[int, Field(ge=1, le=5)] = 5
    retry_keeps: Annotated[float, Field(ge=0, le=1)] = 0.5
    latency_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Declared time of each check."""
    system: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """One problem."""

    text: str
    value: int
    tries: int


class MultiTurn:
    """The game's problems by index."""

    Config = MultiTurnConfig
    name = "multi-turn"
    same_prompt = True

    def __init__(self, config: Mapping[str, Any], tokenizer: Tokenizer, seed: int) -> None:
        self.config = read_section(MultiTurnConfig, config, "environment multi-turn")
        self.max_turns = self.config.max_turns
        self.tokenizer = tokenizer
        self._seed = seed
        continue_turn(tokenizer, (), "check that the template can go on")

    def make(self, index: int, split: str) -> "MultiTurnEnv":
        """A fresh game for problem ``index`` of ``split``."""
        if split not in (TRAIN, EVAL):
            raise ConfigError(f"there is no split {split}: use {TRAIN} or {EVAL}")
        problem = draw_on_side(
            lambda i: draw_sum(rng_of(self._seed, split, index, i), self.config),
            lambda p: p.text,
            split,
        )
        return MultiTurnEnv(problem, self.config, self.tokenizer)

    async def aclose(self) -> None:
        """Nothing to end."""


class MultiTurnEnv:
    """One game."""

    stop: tuple[str, ...] = ()

    def __init__(self, problem: Sum, config: MultiTurnConfig, tokenizer: Tokenizer) -> None:
        self.problem = problem
        self._config = config
        self._tokenizer = tokenizer
        self._n_tries = 0

    async def start(self) -> tuple[int, ...]:
        """The problem."""
        return self._tokenizer.prompt(self._question, system=self._config.system)

    async def step(self, tokens: tuple[int, ...]) -> Turn:
        """Check the last number of the reply."""
        if self._config.latency_s:
            await asyncio.sleep(self._config.latency_s)
        self._n_tries += 1
        said = extract_answer(self._tokenizer.decode(tokens), "number")
        guess = None if said is None else float(said)
        info = {"turns": self._n_tries, "why": f"{said or 'no number'} for {self.problem.value}"}
        if guess == self.problem.value:
            return Turn(reward=self._config.retry_keeps ** (self._n_tries - 1), info=info)
        if self._n_tries >= self.problem.tries:
            return Turn(reward=0.0, info=info)
        text = f"{self._hint(guess)} {_left(self.problem.tries - self._n_tries)} {self._question}"
        return Turn(tokens=continue_turn(self._tokenizer, tokens, text), done=False, info=info)

    def columns(self) -> Mapping[str, Any]:
        """The answer and how many tries there were."""
        return {"answer": str(self.problem.value), "tries": self.problem.tries}

    @property
    def _question(self) -> str:
        return f"What is {self.problem.text}? Reply with one number."

    def _hint(self, guess: float | None) -> str:
        if guess is None:
            return "That is no number."
        return "Too high." if guess > self.problem.value else "Too low."


def draw_sum(rng: random.Random, config: MultiTurnConfig) -> Sum:
    """A problem of ``rng``: more tries, larger numbers."""
    n = min(rng.choices(TRIES, TRIES_PERCENT)[0], config.max_turns)
    largest = min(LARGEST_NUMBER, config.largest + (n - 1) * config.largest // 4)
    a, b = rng.randint(1, largest), rng.randint(1, largest)
    if rng.random() < 0.5:
        return Sum(text=f"{a} + {b}", value=a + b, tries=n)
    return Sum(text=f"{max(a, b)} - {min(a, b)}", value=abs(a - b), tries=n)


def _left(tries: int) -> str:
    return "1 try left." if tries == 1 else f"{tries} tries left."
