"""Rows: how a micro-batch's queries are laid out for attention.

Where sequences share a prefix its queries are needed once, while its keys are read by all of them.
So the queries of each sequence that are its own are cut into rows of one width, and a row knows
whose keys it reads: of eight samples of 64 + 32 tokens that is 10 rows of 32 queries instead of 8
of 96. No tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Queries at positions ``start:end`` of a sequence."""

    sequence: int
    start: int
    end: int


def whole_rows(lengths: Sequence[int]) -> list[Row]:
    """Every sequence a row: where nothing is shared."""
    return [Row(i, 0, n) for i, n in enumerate(lengths)]


def query_rows(own: Sequence[tuple[int, int]]) -> tuple[list[Row], int]:
    """Rows for the positions ``start:end`` that each sequence has of its own (none, if it is its
    family's prefix), and their width: the one that leaves the fewest places, padding included."""
    lengths = [end - start for start, end in own if end > start]
    width = min(
        sorted(set(lengths), reverse=True), key=lambda w: w * sum(-(-n // w) for n in lengths)
    )
    rows = [
        Row(i, at, min(at + width, end))
        for i, (start, end) in enumerate(own)
        for at in range(start, end, width)
    ]
    return rows, width
