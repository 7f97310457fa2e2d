"""Rebuild: frozen values of the core from the JSON that ``obs.records.plain`` made of them.

Invariant: ``plain(rebuild(type, plain(value))) == plain(value)``. A field that is unknown, or of
another kind than the type says, is refused, so that a trace of another version is not misread.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def rebuild(kind: type[T], data: Any) -> T:
    """A value of type ``kind``; TypeError or ValueError if ``data`` is none."""
    found: T = _value(kind, data)
    return found


def _value(kind: Any, data: Any) -> Any:
    if isinstance(kind, NewType):
        return _value(kind.__supertype__, data)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        choices = [choice for choice in get_args(kind) if choice is not NoneType]
        if data is None and len(choices) < len(get_args(kind)):
            return None
        return _value(choices[0], data)
    if origin is tuple:
        items = get_args(kind)
        values = _typed((list, tuple), data)
        if items[-1] is Ellipsis:
            return tuple(_value(items[0], one) for one in values)
        return tuple(_value(item, one) for item, one in zip(items, values, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        key, item = get_args(kind)
        pairs = _typed(dict, data).items()
        return {_value(key, k): _value(item, one) for k, one in pairs}
    if is_dataclass(kind):
        return _dataclass(kind, _typed(dict, data))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return data  # as it was: 0 is written as 0
    return _typed(kind, data) if kind in (bool, int, float, str) else data


def _dataclass(kind: Any, data: dict[str, Any]) -> Any:
    known = _hints(kind)
    unknown = [name for name in data if name not in known]
    if unknown:
        raise TypeError(f"{kind.__name__} has no field {unknown[0]!r}")
    return kind(**{name: _value(known[name], item) for name, item in data.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _typed(kind: Any, data: Any) -> Any:
    if not isinstance(data, kind) or (kind is not bool and isinstance(data, bool)):
        name = "list" if isinstance(kind, tuple) else kind.__name__
        raise TypeError(f"{data!r} is no {name}")
    return data
