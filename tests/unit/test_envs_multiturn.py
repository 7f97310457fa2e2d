"""plait.envs.multiturn: a skewed number of turns whatever the policy can do."""

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.envs.multiturn import MultiTurn, MultiTurnEnv
from plait.envs.registry import make_source
from plait.models.tokenizer import Tokenizer


@pytest.fixture
def tokenizer(byte_model: Path) -> Tokenizer:
    return Tokenizer(byte_model)


def source(tokenizer: Tokenizer, seed: int = 0, **config: Any) -> MultiTurn:
    made = make_source("multi-turn", config, tokenizer, seed)
    assert isinstance(made, MultiTurn)
    return made


async def play(
    env: MultiTurnEnv, tokenizer: Tokenizer, policy: Callable[[int], str]
) -> tuple[int, float, str]:
    """Turns, reward, and the whole conversation."""
    text = tokenizer.decode(await env.start())
    for turn in range(1, 10):
        said = tokenizer.encode(policy(turn))
        answer = await env.step(said)
        text += tokenizer.decode(said + answer.tokens)
        if answer.done:
            assert answer.reward is not None
            return turn, answer.reward, text
        assert answer.reward is None
    raise AssertionError("the game never ended")


async def test_most_samples_end_in_two_turns_and_some_reach_five(tokenizer: Tokenizer) -> None:
    """The worst policy makes the longest games."""
    made = source(tokenizer)
    turns: collections.Counter[int] = collections.Counter()
    for i in range(400):
        n, reward, _ = await play(made.make(i, "train"), tokenizer, lambda turn: "I do not know")
        turns[n] += 1
        assert reward == 0.0
    assert 0.65 < (turns[1] + turns[2]) / 400 < 0.85
    assert turns[4] >= 10
    assert turns[5] >= 10
    assert max(turns) == made.max_turns == 5


async def test_hints_and_decaying_reward(tokenizer: Tokenizer) -> None:
    made = source(tokenizer, retry_keeps=0.5)
    env = next(e for i in range(200) if (e := made.make(i, "train")).problem.tries == 4)
    right = env.problem.value
    said = {1: str(right + 1), 2: "hm", 3: f"{right - 1} no, {right}."}
    n, reward, text = await play(env, tokenizer, lambda turn: said[turn])
    assert (n, reward) == (3, 0.25)
    question = f"What is {env.problem.text}? Reply with one number."
    assert text.startswith(f"{question}{right + 1}\nToo high. 3 tries left. {question}\nhm\n")
    assert "\nThat is no number. 2 tries left. " in text
    assert (await play(made.make(0, "train"), tokenizer, lambda _: _answer(made, 0)))[:2] == (
        1,
        1.0,
    )


def _answer(made: MultiTurn, index: int) -> str:
    return str(made.make(index, "train").columns()["answer"])


def test_items_and_splits(tokenizer: Tokenizer) -> None:
    one, two = source(tokenizer), source(tokenizer)
    assert [one.make(i, "train").problem for i in range(9)] == [
        two.make(i, "train").problem for i in range(9)
    ]
    sides = {
        split: {
            source(tokenizer, s).make(i, split).problem.text for s in (0, 1) for i in range(300)
        }
        for split in ("train", "eval")
    }
    assert not sides["train"] & sides["eval"]
    assert min(map(len, sides.values())) > 10


def test_fewer_turns_and_bad_keys(tokenizer: Tokenizer) -> None:
    made = source(tokenizer, max_turns=2)
    assert {made.make(i, "train").problem.tries for i in range(100)} == {1, 2}
    with pytest.raises(ConfigError, match="no key max_turn: did you mean max_turns"):
        source(tokenizer, max_turn=2)
    with pytest.raises(ConfigError, match="largest"):
        source(tokenizer, largest=1000)
