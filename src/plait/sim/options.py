"""Options: what a setting may say beside its cluster and jobs, by name, kind and bounds.

What each means stands in ``simulate``. Invariant: after ``check_options`` no part of a simulation
finds an option of another kind, and none is left that nobody reads.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from plait.core.errors import ConfigError
from plait.sim.bounds import MOST_COUNT, MOST_SECONDS
from plait.sim.costs.names import pick

COUNTS = ("kv_tokens", "kv_blocks", "most_rows", "draws")
"""Whole numbers from 0 on."""
NUMBERS = {"misjudge": 1e6, "recover_s": MOST_SECONDS, "until_s": float("inf")}
"""The most of each; from 0 on."""
TIMES = ("lost", "cancel")
"""Seconds by name."""
SOURCES = ("group", "groups", "brought")
"""Of ``rollout_from``."""
NAMES = ("seed", *COUNTS, *NUMBERS, *TIMES, "rollout_from", "lora_groups", "estimated")


def check_options(options: Any) -> None:
    """ConfigError that names the option which is unknown or of another kind."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"options is {options!r}: give options by name, such as {{seed: 1}}")
    for name, value in options.items():
        pick("option", str(name), dict.fromkeys(NAMES, True))
        if (wanted := _wanted(name, value)) is not None:
            raise ConfigError(f"options.{name} is {value!r}: give {wanted}")


def _wanted(name: str, value: Any) -> str | None:
    """What the option should be, if it is something else."""
    if name == "seed":
        return None if _whole(value) else "a whole number"
    if name in COUNTS:
        right = _whole(value) and 0 <= value <= MOST_COUNT
        return None if right else f"a whole number from 0 to {MOST_COUNT:,}"
    if name in NUMBERS:
        return None if _number(value, NUMBERS[name]) else f"a number from 0 to {NUMBERS[name]:g}"
    if name in TIMES:
        right = isinstance(value, Mapping) and all(
            _number(at_s, MOST_SECONDS) for at_s in value.values()
        )
        return None if right else f"seconds (at most {MOST_SECONDS:g}) by name"
    if name == "rollout_from":
        return None if value in SOURCES else ", ".join(SOURCES[:-1]) + f" or {SOURCES[-1]}"
    if name == "lora_groups":
        right = isinstance(value, Mapping) and all(map(_words, value.values()))
        return None if right else "a list of node groups by model"
    return None if isinstance(value, bool) else "true or false"


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any, most: float) -> bool:
    right = isinstance(value, (int, float)) and not isinstance(value, bool)
    return right and 0 <= value <= most and (isfinite(value) or most == float("inf"))


def _words(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value)
