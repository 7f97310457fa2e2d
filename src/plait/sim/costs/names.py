"""Names: looking one up, or saying which was probably meant."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from plait.core.errors import ConfigError

T = TypeVar("T")

MAX_SHOWN = 60
"""Characters of an unknown name that are shown."""


def pick(what: str, name: str, known: Mapping[str, T]) -> T:
    """``known[name]``, or ConfigError with the nearest known name."""
    if (found := known.get(name)) is not None:
        return found
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    guess = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"unknown {what} {name[:MAX_SHOWN]!r}: {guess}known: {', '.join(known)}")
