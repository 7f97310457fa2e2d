"""Rows: the records of a ``.jsonl`` or ``.parquet`` file, and which of them are held out.

Rows with the same prompt are always on one side. Which side depends on the file's prompts alone,
not on a seed, so runs with different seeds hold out the same rows.
"""

import codecs
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError
from plait.core.text import is_writable
from plait.envs.split import unit_hash
from plait.sections import nearest

Row = dict[str, Any]

MAX_DEPTH = 64
"""Lists and objects inside each other in one row: more is damage, and what copies, sends and writes
rows has its own bounds not far above."""
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """All rows, each with every one of ``columns``; ConfigError that says which is not."""
    try:
        if not path.is_file():
            raise ConfigError(f"there is no file {path}: check the environment's file")
        rows = _parquet(path) if path.suffix == ".parquet" else _jsonl(path)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} ({error.strerror or error}): check the environment's file"
        ) from error
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
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1:
                if line.startswith(UTF16):
                    raise ConfigError(f"{path} is UTF-16: save it as UTF-8")
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                rows.append(_row(line, f"{path} line {number}"))
    return rows


def _row(line: bytes, where: str) -> Row:
    """One line's object; ConfigError, which says ``where``, if it is none or cannot be used."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise ConfigError(f"{where} is not UTF-8 (byte 0x{byte:02x}): save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is no JSON: {error.msg}") from error
    except ValueError as error:  # Python's own bound on the digits of a number
        raise ConfigError(f"{where} holds a number of too many digits: write it as text") from error
    except RecursionError as error:
        raise ConfigError(_too_deep(where)) from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is no object: one {{…}} per line")
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_deep(row):
        raise ConfigError(_too_deep(where))
    if b"\\u" in line and not is_writable(json.dumps(row, ensure_ascii=False)):
        raise ConfigError(
            f"{where} holds half a character (an escape from \\ud800 to \\udfff by itself): "
            "write the whole one"
        )
    return row


def _too_deep(where: str) -> str:
    return f"{where} has more than {MAX_DEPTH} lists and objects inside each other: flatten it"


def _is_deep(row: Row) -> bool:
    level: list[Any] = [row]
    for _ in range(MAX_DEPTH):
        inner = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for values in inner for v in values if isinstance(v, dict | list)]
    return bool(level)


def _parquet(path: Path) -> list[Row]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path} needs pyarrow: pip install 'plait[envs]'") from error
    try:
        rows: list[Row] = read_table(path).to_pylist()
    except (ArrowException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from error
    return rows
