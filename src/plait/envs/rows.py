"""Rows: the records of a ``.jsonl`` or ``.parquet`` file, and which of them are held out.

Rows with the same prompt are always on one side. Which side depends on the file's prompts alone,
not on a seed, so runs with different seeds hold out the same rows.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError
from plait.envs.split import unit_hash
from plait.sections import nearest

Row = dict[str, Any]


def read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """All rows, each with every one of ``columns``; ConfigError that says which is not."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: check the environment's file")
    rows = _parquet(path) if path.suffix == ".parquet" else _jsonl(path)
    if not rows:
        raise ConfigError(f"{path} has no rows")
    for i, row in enumerate(rows):
        for column in columns:
            if row.get(column) is None:
                hint = nearest(column, [k for k in row if k != column])
                raise ConfigError(f"{path} row {i + 1} has no {column}: {hint}")
    return rows


def hold_out(rows: Iterable[Row], prompt: str, fraction: float) -> tuple[list[Row], list[Row]]:
    """``(train, eval)``: the ``fraction`` of different prompts with the smallest hashes is held
    out, at least one of two or more unless the fraction is 0."""
    rows = list(rows)
    texts = sorted({key_of(row, prompt) for row in rows}, key=lambda text: (unit_hash(text), text))
    n_held = min(math.ceil(fraction * len(texts)), len(texts) - 1)
    held = set(texts[:n_held])
    return (
        [row for row in rows if key_of(row, prompt) not in held],
        [row for row in rows if key_of(row, prompt) in held],
    )


def key_of(row: Row, prompt: str) -> str:
    """What makes two rows the same problem."""
    value = row[prompt]
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _jsonl(path: Path) -> list[Row]:
    if path.suffix not in (".jsonl", ".ndjson"):
        raise ConfigError(f"{path} is neither .jsonl nor .parquet: convert it")
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{path} line {number} is no JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"{path} line {number} is no object: one {{…}} per line")
            rows.append(row)
    return rows


def _parquet(path: Path) -> list[Row]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path} needs pyarrow: pip install 'plait[envs]'") from error
    try:
        rows: list[Row] = read_table(path).to_pylist()
    except ArrowException as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from error
    return rows
