"""Targets: tokens that a client wants scored in place of its prompt's own, in the layout that they
came in, which is the answer's too.

A matrix of ids with a row for each token of the prompt but the first: dense, or sparse (CSR), where
only cells that are listed are there.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

NOTHING = -1
"""A cell that asks for nothing."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Targets:
    """``ids`` row after row, int64. ``starts`` (where each row begins, and the end) and ``columns``
    are a sparse matrix's; a dense one has every cell."""

    shape: tuple[int, int]
    ids: Ints
    starts: Ints | None = None
    columns: Ints | None = None

    @property
    def named(self) -> NDArray[np.bool_]:
        """Which of ``ids`` ask for something."""
        return np.not_equal(self.ids, NOTHING)

    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each row."""
        n_rows, width = self.shape
        starts = np.arange(n_rows + 1) * width if self.starts is None else self.starts
        before = np.append(0, np.cumsum(self.named))[starts].tolist()
        tokens = tuple(self.ids[self.named].tolist())
        return tuple(tokens[start:end] for start, end in pairwise(before))
