"""Reading YAML with positions: plain data, and where in the file each value stands.

Numbers as people write them: ``1e-4`` is a number and ``on``, ``off``, ``yes``, ``no`` are words
(YAML 1.2, where PyYAML follows 1.1). A key given twice is refused, as is a file that unfolds
without end. Nothing is substituted: no environment variables. What comes out is words, numbers,
true, false, null, lists and mappings, whatever tags say.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from plait.core.errors import ConfigError
from plait.core.text import is_writable
from plait.jobs.plain import HALF, MAX_DEPTH, MAX_INT, TOO_DEEP, TOO_LARGE

MAX_NODES = 100_000
"""Aliases can unfold a short file into billions of values; no honest job file comes near this."""

MAX_DIGITS = 100
"""Of a number with its zeros in front; more are not even read."""
MAX_SHOWN = 40
"""Characters of a wrong value that are shown."""

Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlFile:
    """One parsed document."""

    path: Path
    data: Any
    marks: dict[Where, tuple[int, int]]
    """Line and column (from 1) of each key, or of the item where there is no key."""

    def at(self, *candidates: Where) -> str:
        """``file:line:col`` of the first candidate, or of the nearest place around it, that is in
        the file."""
        for where in candidates:
            for end in range(len(where), 0, -1):
                if (mark := self.marks.get(where[:end])) is not None:
                    return f"{self.path}:{mark[0]}:{mark[1]}"
        line, column = self.marks[()]
        return f"{self.path}:{line}:{column}"


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2."""


_TAG = "tag:yaml.org,2002:"
_REPLACED = {f"{_TAG}{kind}" for kind in ("bool", "float", "int", "timestamp")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_SCALARS = {
    "bool": re.compile(r"^(true|True|TRUE|false|False|FALSE)$"),
    "int": re.compile(r"^[-+]?[0-9][0-9_]*$"),
    "float": re.compile(
        r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    "null": re.compile(r"^(~|null|Null|NULL|)$"),
}
_FIRST = {"bool": "tTfF", "int": "-+0123456789", "float": "-+.0123456789"}
for _kind, _characters in _FIRST.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", _SCALARS[_kind], list(_characters))
_NOT_PLAIN = ("binary", "timestamp", "set", "omap", "pairs")


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node).replace("_", ""))


def _real(loader: _Loader, node: yaml.ScalarNode) -> float:
    return _number(loader.construct_scalar(node))


def _number(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor(f"{_TAG}int", _integer)
_Loader.add_constructor(f"{_TAG}float", _real)


def read_yaml(path: str | Path) -> YamlFile:
    """The one document in ``path``; ConfigError with file:line:col."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no file {path}: give the path of a job file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{path} is empty: give it an `environment` and `steps`")
        marks: dict[Where, tuple[int, int]] = {}
        _walk(path, node, (), marks, [])
        return YamlFile(path=path, data=loader.construct_document(node), marks=marks)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else f"{path}"
        raise ConfigError(f"{where}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: it {TOO_DEEP}") from None


def _walk(
    path: Path,
    node: yaml.Node,
    where: Where,
    marks: dict[Where, tuple[int, int]],
    above: list[yaml.Node],
) -> None:
    """Record positions; refuse what no job file means: duplicate keys, keys that are no words,
    scalars that are no plain value, endless and bottomless structures."""
    if any(node is outer for outer in above) or len(marks) > MAX_NODES:
        raise ConfigError(f"{path}: its aliases unfold without end: write the values out")
    line, column = _position(node)
    marks.setdefault(where, (line, column))
    if (why := _objection(node, len(above))) is not None:
        raise ConfigError(f"{path}:{line}:{column}: {why}")
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            _walk(path, item, (*where, i), marks, [*above, node])
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line, column = _position(key)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{path}:{line}:{column}: a key must be a word")
            if key.tag == f"{_TAG}merge":
                _walk(path, value, where, marks, [*above, node])
                continue
            if key.tag != f"{_TAG}str":
                raise ConfigError(
                    f"{path}:{line}:{column}: the key {_shown(key.value)} is no word: quote it"
                )
            if (why := _objection(key, 0)) is not None:
                raise ConfigError(f"{path}:{line}:{column}: {why}")
            if key.value in seen:
                raise ConfigError(
                    f"{path}:{line}:{column}: `{_shown(key.value)}` is given twice "
                    f"(first on line {seen[key.value]}): keep one"
                )
            seen[key.value] = line
            marks[(*where, key.value)] = (line, column)
            _walk(path, value, (*where, key.value), marks, [*above, node])


def _objection(node: yaml.Node, depth: int) -> str | None:
    """Why a node is no plain value, if it is none."""
    kind = node.tag.removeprefix(_TAG)
    if kind in _NOT_PLAIN:
        return f"!!{kind} is no plain value: write words, numbers, lists and mappings"
    if depth > MAX_DEPTH:
        return f"it {TOO_DEEP}"
    if not isinstance(node, yaml.ScalarNode):
        return None
    value: str = node.value
    shown = _shown(value)
    if not is_writable(value):
        return f"it {HALF}"
    if kind in _SCALARS and not _SCALARS[kind].fullmatch(value):
        return f"`{shown}` is no {kind}"
    if kind == "float" and not math.isfinite(_number(value)):
        return f"{shown} is not a finite number"
    if kind == "int" and (len(value) > MAX_DIGITS or abs(int(value.replace("_", ""))) > MAX_INT):
        return f"{shown} {TOO_LARGE}"
    return None


def _shown(text: str) -> str:
    """The beginning of a text, on one line."""
    escaped = repr(text)[1:-1]
    return escaped if len(escaped) <= MAX_SHOWN else f"{escaped[:MAX_SHOWN]}…"


def _position(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
