"""Sweeps: ``matrix: {optimizer.learning_rate: [1e-4, 3e-4], adapter.rank: [8, 16]}`` makes one job
per combination, the first key changing slowest.

Names are the job's own name and each value (``name-lr1e-4-r8``): unique, and safe as directories.
Whether a path names a key that exists is for the job's own check to say.
"""

import copy
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_JOBS = 1000
"""A slip in a sweep should not make a million runs."""
MAX_LABEL = 24
"""Characters of one value in a name; a path or a prompt would make an unreadable directory."""

SHORT = {
    "learning_rate": "lr",
    "rank": "r",
    "alpha": "a",
    "seed": "s",
    "groups": "g",
    "samples": "n",
    "temperature": "t",
    "staleness": "k",
    "kl_coef": "kl",
    "name": "",
    "model": "",
    "environment": "",
}
"""What stands before a value in a generated name; other keys by their last word."""


class MatrixError(ValueError):
    """A matrix that makes no jobs; ``key`` says where."""

    def __init__(self, key: str | None, message: str) -> None:
        super().__init__(message)
        self.key = key


def expand(job: Mapping[str, Any], matrix: object) -> Iterator[dict[str, Any]]:
    """The jobs that ``matrix`` makes of ``job``, which has its name; MatrixError if it is none."""
    axes = _axes(matrix)
    if math.prod(len(values) for values in axes.values()) > MAX_JOBS:
        raise MatrixError(None, f"`matrix` makes more than {MAX_JOBS} jobs: use fewer values")
    labels = _labels(axes)
    for choice in itertools.product(*(range(len(values)) for values in axes.values())):
        one = copy.deepcopy(dict(job))
        parts = [str(job["name"])]
        for (path, values), i in zip(axes.items(), choice, strict=True):
            _set(one, path, copy.deepcopy(values[i]))
            parts.append(labels[path][i])
        one["name"] = "-".join(parts)
        yield one


def _axes(matrix: object) -> dict[str, list[Any]]:
    if not isinstance(matrix, Mapping) or not matrix:
        raise MatrixError(None, "`matrix` must map keys to lists: {optimizer.learning_rate: [...]}")
    for path, values in matrix.items():
        if not isinstance(values, list) or not values:
            raise MatrixError(path, f"`matrix.{path}` must be a list of values")
        if path in ("name", "matrix"):
            raise MatrixError(
                path, f"`matrix.{path}`: names are made from the values; leave it out"
            )
    return dict(matrix)


def _labels(axes: Mapping[str, list[Any]]) -> dict[str, list[str]]:
    """Per key one distinct label per value. Keys that would share a prefix get their whole path."""
    prefixes = {path: _prefix(path) for path in axes}
    shared = [p for p in prefixes.values() if list(prefixes.values()).count(p) > 1]
    out = {}
    for path, values in axes.items():
        prefix = path.replace(".", "_") if prefixes[path] in shared else prefixes[path]
        labels = [_slug(prefix + _label(value)) for value in values]
        repeated = {label for label in labels if labels.count(label) > 1}
        out[path] = [
            f"{label}_{i + 1}" if label in repeated else label for i, label in enumerate(labels)
        ]
    return out


def _prefix(path: str) -> str:
    word = path.rsplit(".", 1)[-1]
    return SHORT.get(word, word)


def _label(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name", ""))
    if isinstance(value, list):
        return "_".join(_label(item) for item in value)
    if isinstance(value, float):
        return _number(value)
    return str(value).rsplit("/", 1)[-1]


def _number(value: float) -> str:
    """``0.3``, ``1e-4``: small and large ones by mantissa and exponent, as people write them."""
    if value == 0 or 1e-2 <= abs(value) < 1e6:
        return f"{value:g}"
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _slug(text: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9._+-]+", "_", text).strip("_.")
    return slug[:MAX_LABEL] or "v"


def _set(job: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    section = job
    for word in outer:
        inner = section.setdefault(word, {})
        if not isinstance(inner, dict):
            raise MatrixError(path, f"`matrix.{path}`: `{word}` is not a section")
        section = inner
    section[last] = value
