"""Replies: what an environment's process answers, as it is read in the head.

All of it is JSON of bounded size, checked for its shape here; whether tokens are the model's and
rewards finite is checked where every environment's are (``envs.turns``). A reply that is none is an
EnvironmentFailure of the sample that asked.
"""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from plait.core.errors import EnvironmentFailure
from plait.core.text import writable

MAX_REPLY_BYTES = 2 * 2**20
"""The columns, and some 150,000 tokens. A longer reply ends its process unread."""
MAX_COLUMNS_BYTES = 2**20
"""Of one sample; a batch's are in memory together."""
MAX_WORDS = 2000
"""Characters of an error, of an environment's own words about a reward, of a stop string."""
MAX_STOPS = 64

Words = Annotated[str, Field(max_length=MAX_WORDS)]
M = TypeVar("M", bound=BaseModel)


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Failed(_Reply):
    """What the user's code raised."""

    error: Words


class Made(_Reply):
    """What the source says of itself."""

    name: Words
    same_prompt: bool
    max_turns: int
    max_observation_tokens: int
    scores: bool
    """False where every reward is left to the job's reward functions."""


class Said(_Reply):
    """Of a sample after ``start`` or ``step``."""

    tokens: list[int]
    stop: Annotated[list[Words], Field(max_length=MAX_STOPS)]
    columns: dict[str, JsonValue] | None = None
    """``None``: as they were."""
    no_columns: Words = ""
    """Why there are none."""


class Stepped(Said):
    """After ``step``."""

    reward: float | None
    done: bool
    why: Words | None


class Done(_Reply):
    """Nothing to say."""


def read_reply(kind: type[M], body: bytes) -> M:
    """A reply of that kind; EnvironmentFailure with what the user's code raised, or if it is no
    such reply."""
    if body.startswith(b'{"error":'):
        raise EnvironmentFailure(_read(Failed, body).error)
    return _read(kind, body)


def _read(kind: type[M], body: bytes) -> M:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"][:3])
        what = writable(f"{place or 'it'}: {first['msg']}"[:MAX_WORDS])
        raise EnvironmentFailure(
            f"the environment's process sent what is no answer ({what}): does it use plait's own "
            "channel?"
        ) from None
