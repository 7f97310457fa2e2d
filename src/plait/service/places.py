"""Places: those of one tenant's models and jobs that are alive, and who gets the next place.

First come, first served. Whoever waits asks again every second; one that has not asked for
``LEFT_S`` waits no more, and holds nobody up.
"""

LEFT_S = 10.0
"""Longer than a busy event loop keeps anybody from asking."""


class Places:
    """One tenant's; ``now`` is a monotonic clock's."""

    def __init__(self, n_taken: int = 0) -> None:
        self.n_taken = n_taken
        self._waiting: dict[str, float] = {}
        """When each asked last, in the order in which they asked first."""

    def take(self, who: str, most: int | None, now: float) -> int:
        """Take a place: 0; or the position among those that wait."""
        self._waiting = {k: t for k, t in self._waiting.items() if now - t <= LEFT_S or k == who}
        self._waiting[who] = now
        ahead = list(self._waiting).index(who)
        if most is not None and self.n_taken + ahead >= most:
            return ahead + 1
        del self._waiting[who]
        self.n_taken += 1
        return 0

    def give(self) -> None:
        """Somebody's place is free."""
        self.n_taken = max(0, self.n_taken - 1)
