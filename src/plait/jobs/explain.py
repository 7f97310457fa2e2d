"""Pydantic's findings in one line for people: which key, what is wrong, what to write instead."""

import difflib
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

from plait.jobs.yamlfile import Where

MAX_SHOWN = 60
"""Characters of a wrong value that are shown."""


def explain(error: ValidationError, model: type[BaseModel], label: str) -> tuple[Where, str]:
    """Keys of the first finding (unknown keys before the rest) and its explanation."""
    found = error.errors(include_url=False)
    first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
    keys: Where = tuple(first["loc"])
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return keys, _message(first, keys, model, label) + more


def known_keys(model: type[BaseModel], keys: Where) -> tuple[str, ...]:
    """Keys of the section that stands at ``keys``."""
    current: type[BaseModel] | None = model
    for key in keys:
        if isinstance(key, int):
            continue
        info = current.model_fields.get(key) if current is not None else None
        current = _section(info.annotation) if info is not None else None
    return tuple(current.model_fields) if current is not None else ()


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_section(part) for part in typing.get_args(annotation))
    return next((section for section in inner if section is not None), None)


def _message(first: Any, keys: Where, model: type[BaseModel], label: str) -> str:
    kind, value = first["type"], first["input"]
    path = _dotted(label, keys)
    if kind == "extra_forbidden":
        known = known_keys(model, keys[:-1])
        near = difflib.get_close_matches(str(keys[-1]), known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known)}"
        return f"unknown key `{keys[-1]}` in {_dotted(label, keys[:-1])}: {hint}"
    if kind == "missing":
        return f"{_dotted(label, keys[:-1])} needs `{keys[-1]}`"
    if kind == "value_error":
        return f"{path}: {first['ctx']['error']}"
    if kind == "literal_error":
        choices = [
            choice for choice in _choices(first["ctx"]["expected"]) if isinstance(value, str)
        ]
        near = difflib.get_close_matches(str(value), choices, n=1)
        guess = f" (did you mean `{near[0]}`?)" if near else ""
        return f"{path} must be {first['ctx']['expected']}, not {_shown(value)}{guess}"
    if kind == "string_pattern_mismatch":
        return f"{path} must look like {_SHAPES.get(keys[-1], 'a word')}, not {_shown(value)}"
    if kind == "model_type":
        return f"{path} must map keys to values, not {_shown(value)}"
    text = first["msg"].removeprefix("Input ").removeprefix("should be ")
    return f"{path} must be {text[:1].lower()}{text[1:]}, not {_shown(value)}"


_SHAPES: dict[str | int, str] = {
    "name": "a directory's name (letters, digits, . _ + -)",
    "function": "`module:name`",
    "controller": "`module:Class`",
}


def _choices(expected: str) -> list[str]:
    return [word.strip().strip("'") for word in expected.replace(" or ", ", ").split(",")]


def _dotted(label: str, keys: Where) -> str:
    """``jobs[0].optimizer.eps``; a job at the top of its file has no label."""
    text = label
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}"
    return text.lstrip(".") or "the job"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
