"""plait.envs.turns: plain numbers, or an error that says which value is none."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from plait.core.errors import EnvironmentFailure
from plait.envs.protocol import Turn
from plait.envs.turns import read_columns, read_stops, read_tokens, read_turn


def test_numbers_of_any_kind_become_plain_ones() -> None:
    turn = read_turn(
        Turn(
            tokens=np.array([1, 2]),  # type: ignore[arg-type]
            reward=np.float32(0.5),  # type: ignore[arg-type]
            done=np.bool_(False),  # type: ignore[arg-type]
            info={"why": 3, "other": object()},
        ),
        10,
    )
    assert turn == Turn(tokens=(1, 2), reward=0.5, done=False, info={"why": "3"})
    assert [type(t) for t in turn.tokens] == [int, int]
    assert type(turn.reward) is float
    assert turn.done is False
    assert read_turn(Turn(reward=Fraction(1, 4)), 10).reward == 0.25  # type: ignore[arg-type]
    assert read_turn(Turn(), 10) == Turn()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"reward": float("nan")}, "reward is nan: rewards must be finite"),
        ({"reward": 10**400}, "reward is inf: rewards must be finite"),
        ({"reward": "0.5"}, "reward is str where a number belongs"),
        ({"tokens": (10,)}, r"hold 10, which is no token of the model \(0 to 9\)"),
        ({"tokens": (-1,)}, "hold -1, which is no token"),
        ({"tokens": (1.5,)}, "hold float: give token ids"),
        ({"tokens": "ab"}, "hold str: give token ids"),
        ({"tokens": None}, "are NoneType: give a tuple of token ids"),
        ({"info": None}, "info is NoneType where a mapping belongs"),
    ],
)
def test_values_that_are_none(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvironmentFailure, match=says):
        read_turn(Turn(**keys), 10)


def test_answers_that_are_no_turns() -> None:
    with pytest.raises(EnvironmentFailure, match="returned NoneType: return a Turn"):
        read_turn(None, 10)
    with pytest.raises(EnvironmentFailure, match="the prompt's tokens of problem 3 hold 7"):
        read_tokens([7], 7, "the prompt's tokens of problem 3")


def test_stops_are_strings() -> None:
    assert read_stops(["a", "bc"]) == ("a", "bc")
    assert read_stops(()) == ()
    for wrong in ("ab", b"ab", None, 3, float("nan"), (1,), ("a", ""), {"a"}):
        with pytest.raises(EnvironmentFailure, match="the environment's stop"):
            read_stops(wrong)


def test_columns_have_names() -> None:
    assert read_columns({"a": 1}) == {"a": 1}
    for wrong in (None, [("a", 1)], {3: 1}, {None: 1}):
        with pytest.raises(EnvironmentFailure, match=r"the environment's columns\(\)"):
            read_columns(wrong)
