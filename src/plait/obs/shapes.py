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
MAX_COUNT = 1e15
"""Of tokens and other amounts: squares and sums of them are still floats."""
MAX_SECONDS = 1e9
"""Of a launch: thirty years."""

COUNT, SECONDS = "number from 0 on", "seconds from 0 on"
SIZES = ("kv_blocks", "block_size", "max_seqs", "rollout_workers")
"""Settings of a launch that a replay needs."""


def span(row: Row) -> str | None:
    """``workers.jsonl``."""
    return (
        _lasts(row)
        or _needs(row, _word, "word", ("worker", "kind"))
        or _may(row, _word, "word", ("run",))
        or _may(row, _counts, "mapping of runs to numbers", ("tokens_by_run",))
        or _may(row, _number, "number", ("flops",))
        or _may(row, _count, COUNT, ("tokens", "threads", "steps", "kv_blocks_used"))
    )


def event(row: Row) -> str | None:
    """``events.jsonl``."""
    why = (
        _needs(row, _seconds, SECONDS, ("t",))
        or _needs(row, _word, "word", ("kind",))
        or _may(row, _word, "word", ("run",))
    )
    if why is None and row["kind"] == "added":
        return _needs(row, _word, "word", ("job", "run"))
    if why is None and row["kind"] == "outside":
        return _needs(row, _word, "word", ("what", "key")) or _lasts(row)
    if why is None and row["kind"] == "waits":
        return _place(row) or _needs(row, _all(_seconds), f"list of {SECONDS}", ("waits_s",))
    return why


def metrics(row: Row) -> str | None:
    """``metrics.jsonl``: every column is a number, or null where it does not apply."""
    return (
        _needs(row, _seconds, SECONDS, ("t",))
        or _needs(row, _count, COUNT, ("step", "eval_n") if "eval_n" in row else ("step",))
        or _may(row, _number, "number", tuple(row))
        or _may(row, _count, COUNT, ("tokens_trained",))
        or _may(row, _seconds, SECONDS, ("publish_s",))
    )


def sample(row: Row) -> str | None:
    """``samples.jsonl``, for a replay."""
    return (
        _may(row, _word, "word", ("split",))
        or _place({"split": "train", **row})
        or _needs(row, _count, COUNT, ("prompt_tokens",))
        or _needs(row, _all(_count), f"list of {COUNT}", ("turn_tokens", "reply_tokens"))
    )


def info(found: Row) -> str | None:
    """``launch.json``."""
    return (
        _needs(found, _word, "word", ("policy",))
        or _may(found, _word, "word", ("model",))
        or _may(found, _words, "list of words", ("jobs",))
        or _may(found, _mapping, "mapping", ("policy_options", "settings", "versions", "machine"))
        or _may(found, _number, "number", ("started_at", "peak_flops"))
        or _may(found.get("machine") or {}, _number, "number", ("cores",))
        or _may(found.get("settings") or {}, _count, COUNT, SIZES)
    )


def _lasts(row: Row) -> str | None:
    """A stretch of time."""
    why = _needs(row, _seconds, SECONDS, ("t0", "t1"))
    return "ends before it begins" if why is None and row["t1"] < row["t0"] else why


def _place(row: Row) -> str | None:
    """Which sample it is."""
    return _needs(row, _word, "word", ("split",)) or _needs(
        row, _count, COUNT, ("step", "index", "group")
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


def _count(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= MAX_COUNT


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= MAX_SECONDS


def _all(ok: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(ok, value))


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(map(_word, value))


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))
