"""Stamps: times of one line that tell what came after what, also where the clock was put back, or
another life of the server had another.
"""

import math
from collections.abc import Callable


class Stamps:
    """Each is later than any before it."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall, self._last_at = wall, 0.0
        self.ending: dict[int, float] = {}
        """When requests ended whose end is on its way to the disk: nobody knows of it yet."""

    def next(self) -> float:
        """The time."""
        self._last_at = max(self._wall(), math.nextafter(self._last_at, math.inf))
        return self._last_at

    def seen(self, at: float) -> None:
        """There was such a one in an earlier life."""
        self._last_at = max(self._last_at, at)

    def arrival(self) -> float:
        """The time for what arrives now: its client knows of no end that is not on the disk."""
        return min([self.next(), *self.ending.values()])
