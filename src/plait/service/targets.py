"""Targets: tokens that a client wants scored in place of its prompt's own, in the layout that they
came in, which is the answer's too.

A matrix of ids with a row for each token of the prompt but the first: dense, or sparse (CSR), where
only cells that are listed are there.
"""

from dataclasses import dataclass
from itertools import pairwise

NOTHING = -1
"""A cell that asks for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """``ids`` row after row. ``starts`` (where each row begins, and the end) and ``columns`` are a
    sparse matrix's; a dense one has every cell."""

    shape: tuple[int, int]
    ids: tuple[int, ...]
    starts: tuple[int, ...] | None = None
    columns: tuple[int, ...] | None = None

    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each row."""
        n_rows, width = self.shape
        starts = self.starts or [width * i for i in range(n_rows + 1)]
        return tuple(
            tuple(token for token in self.ids[start:end] if token != NOTHING)
            for start, end in pairwise(starts)
        )
