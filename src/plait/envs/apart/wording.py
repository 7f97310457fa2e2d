"""Wording: an answer of an environment's process as bytes, which ``replies`` reads."""

import json
from collections.abc import Mapping
from typing import Any

from plait.core.errors import EnvironmentFailure
from plait.core.text import told, writable
from plait.envs.apart.replies import MAX_COLUMNS_BYTES, MAX_STOPS, MAX_WORDS
from plait.envs.protocol import Environment
from plait.envs.turns import read_columns, read_stops
from plait.rewards.outcome import MAX_ERROR_CHARS


def said(reply: Mapping[str, Any]) -> bytes:
    """A reply as it is sent; ValueError of what is not finite, or no text."""
    return json.dumps(reply, ensure_ascii=False, allow_nan=False).encode()


def failure(error: BaseException) -> bytes:
    """What a user's code raised."""
    return said({"error": told(error)[:MAX_ERROR_CHARS]})


def cut(words: str) -> str:
    """Words of the user's that are not too long."""
    return writable(words)[:MAX_WORDS]


def stops_of(env: Environment) -> list[str]:
    """Strings at which its next turn ends; EnvironmentFailure if they are none."""
    stops = list(read_stops(env.stop))
    if len(stops) > MAX_STOPS or any(cut(stop) != stop for stop in stops):
        raise EnvironmentFailure(
            f"the environment's stop has more than {MAX_STOPS} strings, or one that is longer than "
            f"{MAX_WORDS} characters or no text: give fewer and shorter ones"
        )
    return stops


def columns_of(env: Environment) -> bytes:
    """Its columns as JSON; EnvironmentFailure if they cannot be sent."""
    columns = read_columns(env.columns())
    try:
        text = json.dumps(columns, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentFailure(
            f"the environment's columns() cannot be sent as JSON: {told(error)}"
        ) from error
    if len(text) > MAX_COLUMNS_BYTES:
        raise EnvironmentFailure(
            f"the environment's columns() have {len(text)} bytes as JSON, at most "
            f"{MAX_COLUMNS_BYTES} are taken: give less of each sample"
        )
    return text


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy are numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")
