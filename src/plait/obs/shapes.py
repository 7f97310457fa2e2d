"""Shapes: what the readers of a launch's files rely on, looked at line by line as they are read.

Each function says why a row, or what ``launch.json`` holds, cannot be used, if that is so. Columns
that nobody reads may say what they like.
"""

from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]
Objection = Callable[[Row], str | None]

MAX_NUMBER = 1e300
"""A larger one (JSON has no bound) is no float."""


def span(row: Row) -> str | None:
    """``workers.jsonl``."""
    return (
        _needs(row, _number, "number", ("t0", "t1"))
        or _needs(row, _word, "word", ("worker", "kind"))
        or _may(row, _word, "word", ("run",))
        or _may(row, _counts, "mapping of runs to numbers", ("tokens_by_run",))
        or _may(row, _number, "number", ("tokens", "threads", "flops", "steps", "kv_blocks_used"))
    )


def event(row: Row) -> str | None:
    """``events.jsonl``."""
    why = (
        _needs(row, _number, "number", ("t",))
        or _needs(row, _word, "word", ("kind",))
        or _may(row, _word, "word", ("run",))
    )
    if why is None and row["kind"] == "added":
        return _needs(row, _word, "word", ("job", "run"))
    if why is None and row["kind"] == "outside":
        return _needs(row, _word, "word", ("what", "key")) or _needs(
            row, _number, "number", ("t0", "t1")
        )
    return why


def metrics(row: Row) -> str | None:
    """``metrics.jsonl``: every column is a number, or null where it does not apply."""
    needed = ("t", "step", "eval_n") if "eval_n" in row else ("t", "step")
    return _needs(row, _number, "number", needed) or _may(row, _number, "number", tuple(row))


def info(found: Row) -> str | None:
    """``launch.json``."""
    return (
        _needs(found, _word, "word", ("policy",))
        or _may(found, _word, "word", ("model",))
        or _may(found, _words, "list of words", ("jobs",))
        or _may(found, _mapping, "mapping", ("policy_options", "settings", "versions", "machine"))
        or _may(found, _number, "number", ("started_at", "peak_flops"))
        or _may(found.get("machine") or {}, _number, "number", ("cores",))
    )


def _needs(row: Row, ok: Callable[[Any], bool], what: str, keys: tuple[str, ...]) -> str | None:
    wrong = next((key for key in keys if not ok(row.get(key))), None)
    return None if wrong is None else f"has no {what} `{wrong}`"


def _may(row: Row, ok: Callable[[Any], bool], what: str, keys: tuple[str, ...]) -> str | None:
    there = tuple(key for key in keys if row.get(key) is not None)
    return _needs(row, ok, what, there)


def _word(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and -MAX_NUMBER <= value <= MAX_NUMBER


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(map(_word, value))


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))
