"""Declared: what a source says of itself, read once and checked.

It may be a user's, and its attributes properties that raise or say nonsense: further on, where a
batch's cache and turns are counted, that would be other jobs' trouble or nobody's.
"""

import operator
from dataclasses import dataclass

from plait.core.errors import ConfigError
from plait.envs.contain import loading
from plait.envs.protocol import TaskSource

MOST = 1 << 20
"""Turns and tokens beyond this are a mistake: no context is that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A source's attributes in plain values."""

    same_prompt: bool
    max_turns: int
    max_observation_tokens: int = 0
    """0 where the source sets no bound."""


def read_declared(source: TaskSource) -> Declared:
    """ConfigError if an attribute is missing, raises, or is of no use."""
    return Declared(
        same_prompt=_flag(source, "same_prompt"),
        max_turns=_whole(source, "max_turns", least=1),
        max_observation_tokens=_whole(source, "max_observation_tokens", least=0, usual=0),
    )


def _flag(source: TaskSource, name: str) -> bool:
    value = _read(source, name, None)
    if not isinstance(value, bool):
        raise ConfigError(f"the environment's {name} is {_kind(value)}: give True or False")
    return value


def _whole(source: TaskSource, name: str, *, least: int, usual: int | None = None) -> int:
    value = _read(source, name, usual)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except Exception:  # a user's object
        raise ConfigError(
            f"the environment's {name} is {_kind(value)}: give a whole number"
        ) from None
    if not least <= number <= MOST:
        raise ConfigError(
            f"the environment's {name} is {number}: give a number from {least} to {MOST}"
        )
    return number


def _read(source: TaskSource, name: str, usual: object) -> object:
    with loading(f"the environment's {name}"):
        return getattr(source, name, usual)


def _kind(value: object) -> str:
    return str(value) if isinstance(value, float) else type(value).__name__
