"""plait.envs.declared: what a source says of itself, in plain values or an error in one line."""

from typing import Any

import numpy as np
import pytest

from plait.core.errors import ConfigError
from plait.envs.declared import Declared, read_declared


def source(**attributes: Any) -> Any:
    return type("Source", (), {"same_prompt": True, "max_turns": 2, **attributes})()


def raising(error: BaseException) -> property:
    def read(self: object) -> None:
        raise error

    return property(read)


def test_plain_values() -> None:
    assert read_declared(source()) == Declared(same_prompt=True, max_turns=2)
    found = read_declared(source(max_turns=np.int64(3), max_observation_tokens=5))
    assert found == Declared(same_prompt=True, max_turns=3, max_observation_tokens=5)
    assert type(found.max_turns) is int


@pytest.mark.parametrize("name", ["same_prompt", "max_turns", "max_observation_tokens"])
@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), KeyError("x")])
async def test_a_property_that_raises(name: str, error: BaseException) -> None:
    with pytest.raises(ConfigError, match=rf"the environment's {name}: {type(error).__name__}"):
        read_declared(source(**{name: raising(error)}))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_turns", float("nan"), "is nan: give a whole number"),
        ("max_turns", 2.5, "is 2.5: give a whole number"),
        ("max_turns", "3", "is str: give a whole number"),
        ("max_turns", None, "is NoneType: give a whole number"),
        ("max_turns", -1, "is -1: give a number from 1 to"),
        ("max_turns", 0, "is 0: give a number from 1 to"),
        ("max_turns", 10**30, "give a number from 1 to"),
        ("max_observation_tokens", -1, "is -1: give a number from 0 to"),
        ("max_observation_tokens", float("inf"), "is inf: give a whole number"),
        ("same_prompt", "no", "is str: give True or False"),
        ("same_prompt", None, "is NoneType: give True or False"),
    ],
)
def test_nonsense(name: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"the environment's {name} .*{said}"):
        read_declared(source(**{name: value}))


def test_an_attribute_that_is_missing() -> None:
    with pytest.raises(ConfigError, match="the environment's max_turns is NoneType"):
        read_declared(type("Source", (), {"same_prompt": True})())  # type: ignore[arg-type]
