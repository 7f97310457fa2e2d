"""Show: values of the service as people read them. Programs get the JSON as it came."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from plait.cli.console import show

NONE = "–"
MOST = 1000
"""Rows that the service gives at once."""


def show_rows(
    columns: Mapping[str, str],
    rows: Iterable[Mapping[str, Any]],
    *,
    none: str,
    total: int | None = None,
) -> None:
    """A table: heading → key. ``none`` is said where there are no rows, and how many of ``total``
    are shown where that is not all."""
    found = list(rows)
    if not found:
        print(none)
        return
    table = Table(*columns)
    for row in found:
        table.add_row(*(said(key, row.get(key)) for key in columns.values()))
    show(table)
    if total is not None and total > len(found):
        print(f"{len(found):,} of {total:,}")


def show_facts(pairs: Sequence[tuple[str, str]]) -> None:
    """``name: value`` lines, in one column each."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name + ':':{width + 1}} {plain(value)}")


def said(key: str, value: Any) -> str:
    """A value; its key says what it counts."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") and isinstance(value, int | float):
        return size(value)
    if key.endswith("_s") and isinstance(value, int | float):
        return f"{value:.1f}"
    if key.endswith("_at"):
        return str(value)[:19].replace("T", " ")
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.3g}"
    if isinstance(value, float):
        return f"{int(value):,}"
    if isinstance(value, int):
        return f"{value:,}"
    return plain(str(value))


def plain(text: str) -> str:
    """What others have written, without what a terminal would obey."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def size(n_bytes: float) -> str:
    """Bytes in the unit that leaves few digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
