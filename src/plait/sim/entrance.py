"""Entrance: the rows that want to join a batch, in order, and which of them its cache has room for.

A row joins only if the batch with it has room for ``HEADROOM_STEPS`` steps. In exact mode, those
that come in the middle of a forward step stand apart until it ends. Left to others: who must leave
a full cache (``engine``).
"""

from collections import deque
from typing import TYPE_CHECKING

from plait.sim.batch import Batch
from plait.sim.row import Row

if TYPE_CHECKING:
    from plait.sim.portion import Portion

HEADROOM_STEPS = 64
"""A row joins only if the batch with it has room for so many steps: without it, whoever joins a
full cache is sent away again at once (vLLM keeps a hundredth of its blocks free for that)."""


class Entrance:
    """Of one engine."""

    def __init__(self, most_rows: int = 0) -> None:
        """``most_rows``: of a batch; 0: no limit."""
        self.most_rows = most_rows
        self.queue: deque[Row] = deque()
        self.apart: list[Row] = []
        """Until the forward step has ended."""

    def __len__(self) -> int:
        return len(self.queue) + len(self.apart)

    def rows(self) -> list[Row]:
        """All of them."""
        return [*self.queue, *self.apart]

    def come(self, rows: list[Row]) -> None:
        """Behind all others, those that stood apart first."""
        if self.apart:
            rows, self.apart = self.apart + rows, []
        self.queue.extend(rows)

    def take(self, portion: "Portion") -> list[Row]:
        """Take out a portion's rows."""
        out = [row for row in self.rows() if row.portion is portion]
        self.queue = deque(row for row in self.queue if row.portion is not portion)
        self.apart = [row for row in self.apart if row.portion is not portion]
        return out

    def let_in(self, batch: Batch, pool_tokens: int) -> list[Row]:
        """Take out those that may join now."""
        queue, most = self.queue, self.most_rows
        new: list[Row] = []
        n, held = len(batch.rows), batch.held
        while queue and (not most or n < most):
            row = queue[0]
            need = row.held
            if n and held + need + (n + 1) * HEADROOM_STEPS > pool_tokens:
                break
            queue.popleft()
            new.append(row)
            n, held = n + 1, held + need
        return new
