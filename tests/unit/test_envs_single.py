"""plait.envs.single: a whole environment in ten lines."""

import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from plait.core.errors import ConfigError, EnvironmentFailure
from plait.envs.registry import make_source
from plait.envs.single import Problem, SingleTurn
from plait.envs.split import split_of
from plait.models.tokenizer import Tokenizer


class Keys(BaseModel):
    model_config = ConfigDict(extra="forbid")
    length: int = 4


class Reverse(SingleTurn):
    Config = Keys

    def generate(self, rng: random.Random) -> Problem:
        word = "".join(rng.choices("abc", k=self.config.length))
        return Problem(prompt=f"Write {word} backwards.", answer=word[::-1], columns={"word": word})

    def score(self, problem: Problem, completion: str) -> float | None:
        return float("nan") if completion == "nan" else float(completion.strip() == problem.answer)


@pytest.fixture
def tokenizer(byte_model: Path) -> Tokenizer:
    return Tokenizer(byte_model)


def source(tokenizer: Tokenizer, seed: int = 0, **config: Any) -> SingleTurn:
    made = make_source(f"{__name__}:Reverse", config, tokenizer, seed)
    assert isinstance(made, SingleTurn)
    return made


async def test_prompt_reward_and_columns(tokenizer: Tokenizer) -> None:
    env = source(tokenizer).make(3, "train")
    prompt = tokenizer.decode(await env.start())
    word = str(env.columns()["word"])
    assert prompt == f"Write {word} backwards."
    assert env.columns()["answer"] == word[::-1]
    right = await env.step(tokenizer.encode(word[::-1] + "\n"))
    assert (right.reward, right.done, right.tokens) == (1.0, True, ())
    assert (await env.step(tokenizer.encode("no"))).reward == 0.0


async def test_a_reward_that_is_not_finite_is_a_failure(tokenizer: Tokenizer) -> None:
    env = source(tokenizer).make(0, "train")
    await env.start()
    with pytest.raises(EnvironmentFailure, match="must be finite"):
        await env.step(tokenizer.encode("nan"))


def test_an_item_depends_on_seed_split_and_index_alone(tokenizer: Tokenizer) -> None:
    one, two = source(tokenizer, length=9), source(tokenizer, length=9)
    forwards = [one.problem(i, "train").prompt for i in range(20)]
    backwards = [two.problem(i, "train").prompt for i in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == 20
    assert forwards != [
        source(tokenizer, 1, length=9).problem(i, "train").prompt for i in range(20)
    ]


def test_held_out_problems_occur_in_train_under_no_seed(tokenizer: Tokenizer) -> None:
    """3**4 problems and thousands of draws: without the hash, every one would be on both sides."""
    sides: dict[str, set[str]] = {"train": set(), "eval": set()}
    for seed in range(3):
        made = source(tokenizer, seed)
        for split, prompts in sides.items():
            prompts.update(made.problem(i, split).prompt for i in range(500))
    assert not sides["train"] & sides["eval"]
    assert len(sides["train"]) + len(sides["eval"]) == 3**4
    assert len(sides["eval"]) > 5


def test_a_generator_with_one_problem_is_refused(tokenizer: Tokenizer) -> None:
    made = source(tokenizer, length=0)
    problem = made.generate(random.Random(0))
    other = {"train": "eval", "eval": "train"}[split_of(problem.prompt)]
    with pytest.raises(EnvironmentFailure, match="too few different problems"):
        made.problem(0, other)


def test_bad_keys_and_splits(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="no key lenght: did you mean length"):
        source(tokenizer, lenght=3)
    with pytest.raises(ConfigError, match="no split test"):
        source(tokenizer).make(0, "test")
