"""Plain: the values that a job file can hold, and so the ones that survive being written down.

Words, finite numbers, true, false, null, and lists and mappings of them. Decided here for the file
(``yamlfile``) and for what a program puts into a section (``sections``).
"""

import math
from collections.abc import Iterator

from plait.core.runs import MAX_SEED
from plait.core.text import is_writable

MAX_DEPTH = 32
"""Lists and mappings inside each other: what copies, checks and writes jobs recurses too."""
MAX_INT = MAX_SEED
"""Of either sign; the largest seed there is."""

HALF = "holds half a character (\\ud800 to \\udfff): write the whole one, as \\U0001f600"
TOO_DEEP = f"has more than {MAX_DEPTH} lists and mappings inside each other: write it flatter"
TOO_LARGE = f"is too large: at most {MAX_INT}"


def not_plain(value: object) -> str | None:
    """Why ``value`` is no plain value, if it is none."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if (why := next(filter(None, map(_objection, level)), None)) is not None:
            return why
        level = [inner for one in level for inner in _inside(one)]
    return TOO_DEEP if level else None


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _objection(value: object) -> str | None:
    match value:
        case None | bool() | list() | tuple():
            return None
        case str():
            return None if is_writable(value) else HALF
        case int():
            return None if abs(value) <= MAX_INT else TOO_LARGE
        case float():
            return None if math.isfinite(value) else f"is {value}: give a finite number"
        case dict() if all(isinstance(key, str) for key in value):
            return None
        case dict():
            return "has a key that is no word: quote it"
    return f"is a {type(value).__name__}: give words, numbers, lists and mappings"
