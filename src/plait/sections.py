"""Sections: a mapping from a job file into a pydantic model, or one line that says what is wrong.

For sections whose keys belong to what they name (an environment, a reward); the job file's own
sections are ``jobs``'.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from plait.core.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def read_section(model: type[M], section: Mapping[str, Any], where: str) -> M:
    """``section`` as ``model``; ConfigError that names the key, and the nearest known one."""
    for key in section:
        if key not in model.model_fields:
            raise ConfigError(f"{where} has no key {key}: {nearest(key, model.model_fields)}")
    try:
        return model.model_validate(dict(section))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise ConfigError(f"{where} needs the key {key}: add it") from error
        message = str(first.get("ctx", {}).get("error", first["msg"]))
        raise ConfigError(f"{where}: {key} {message[:1].lower()}{message[1:]}") from error


def nearest(word: str, known: Iterable[str]) -> str:
    """``did you mean x?``, or the list of what there is."""
    names = list(known)
    near = difflib.get_close_matches(str(word), names, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names) or 'none'}"
