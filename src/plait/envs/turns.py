"""Turns: what an environment, which may be a user's, answers: checked value by value.

Numbers of numpy and torch are numbers. Anything else that is wrong is an EnvironmentFailure, the
sample's error: further on, where a batch is computed or written, it would be the whole job's.
"""

import operator
from collections.abc import Mapping, Sequence

from plait.core.errors import EnvironmentFailure
from plait.core.text import writable
from plait.envs.protocol import Turn
from plait.rewards.outcome import read_value


def read_turn(answer: object, vocab_size: int) -> Turn:
    """The turn in plain numbers; of ``info`` only ``why`` is kept."""
    turn = plain_turn(answer)
    check_tokens(turn.tokens, vocab_size, "a Turn's tokens")
    return turn


def plain_turn(answer: object) -> Turn:
    """The same where the model's vocabulary is not known."""
    if not isinstance(answer, Turn):
        kind = type(answer).__name__
        raise EnvironmentFailure(f"the environment's step() returned {kind}: return a Turn")
    reward = read_value(answer.reward, "the environment's reward is")
    if reward.error is not None:
        raise EnvironmentFailure(reward.error)
    if not isinstance(answer.info, Mapping):
        kind = type(answer.info).__name__
        raise EnvironmentFailure(f"a Turn's info is {kind} where a mapping belongs")
    why = {"why": writable(str(answer.info["why"]))} if "why" in answer.info else {}
    return Turn(
        tokens=plain_tokens(answer.tokens, "a Turn's tokens"),
        reward=reward.value,
        done=bool(answer.done),
        info=why,
    )


def read_columns(columns: object) -> dict[str, object]:
    """What reward functions receive by keyword."""
    if not isinstance(columns, Mapping):
        kind = type(columns).__name__
        raise EnvironmentFailure(f"the environment's columns() returned {kind}: return a mapping")
    found = dict(columns)
    for name in found:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise EnvironmentFailure(f"the environment's columns() have a name that is {kind}")
    return found


def read_stops(stops: object) -> tuple[str, ...]:
    """Strings at which a turn ends."""
    if isinstance(stops, str | bytes) or not isinstance(stops, Sequence):
        kind = type(stops).__name__
        raise EnvironmentFailure(f"the environment's stop is {kind}: give a tuple of strings")
    found = tuple(stops)
    if not all(isinstance(stop, str) and stop for stop in found):
        raise EnvironmentFailure(
            "the environment's stop holds what is no string, or an empty one: give strings"
        )
    return found


def read_tokens(tokens: object, vocab_size: int, what: str) -> tuple[int, ...]:
    """Token ids of the vocabulary; ``what`` they are stands in the error."""
    ids = plain_tokens(tokens, what)
    check_tokens(ids, vocab_size, what)
    return ids


def plain_tokens(tokens: object, what: str) -> tuple[int, ...]:
    """Whole numbers; ``what`` they are stands in the error."""
    values = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if not isinstance(values, Sequence):
        kind = type(values).__name__
        raise EnvironmentFailure(f"{what} are {kind}: give a tuple of token ids")
    ids = []
    for value in values:
        try:
            ids.append(operator.index(value))
        except TypeError:
            kind = type(value).__name__
            raise EnvironmentFailure(f"{what} hold {kind}: give token ids") from None
    return tuple(ids)


def check_tokens(ids: Sequence[int], vocab_size: int, what: str) -> None:
    """EnvironmentFailure if one is no token of the model."""
    for one in ids:
        if not 0 <= one < vocab_size:
            raise EnvironmentFailure(
                f"{what} hold {one}, which is no token of the model (0 to {vocab_size - 1})"
            )
