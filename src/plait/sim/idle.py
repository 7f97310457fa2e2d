"""Idle caches: of samples that wait for a tool, kept on a worker as long as its batch leaves room.

A cache that is given up is computed again when its sample comes back; those whose samples may be
dropped first go first (``Row.keep``), then those that joined first. Left to others: how much room
there is (``engine``), what a sample's cache is worth (the residency policy).
"""

from operator import attrgetter
from typing import Any

from plait.sim.row import Row

_worth = attrgetter("keep", "order")
"""The least first."""


class IdleCaches:
    """Of one engine."""

    def __init__(self) -> None:
        self._held: dict[Row, int] = {}
        self.n_tokens = 0
        self.n_evicted = 0
        """Tokens, since the beginning."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, row: Row) -> bool:
        return row in self._held

    def keep(self, row: Row) -> None:
        """It waits from now on."""
        self._held[row] = row.held
        self.n_tokens += row.held

    def pop(self, row: Row) -> None:
        """It decodes again, wherever its cache is."""
        self.n_tokens -= self._held.pop(row, 0)

    def pop_all(self, portion: Any) -> None:
        """A portion's samples go elsewhere."""
        for row in [row for row in self._held if row.portion is portion]:
            self.pop(row)

    def forget(self) -> None:
        """All are gone."""
        for row in self._held:
            row.compute = row.context
        self._held.clear()
        self.n_tokens = 0

    def shrink(self, room: float) -> None:
        """To what there is room for."""
        if self.n_tokens <= room:
            return
        for row in sorted(self._held, key=_worth):
            tokens = self._held[row]
            self.pop(row)
            row.compute = row.context
            self.n_evicted += tokens
            if self.n_tokens <= room:
                return
