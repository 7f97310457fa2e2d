"""Order: in which a model's numbered requests are carried out. Pure: the clock is a parameter.

Numbers run from 0 (what makes the model). They may come in any order; each is due when every
smaller one has been. A number that never comes would hold up all behind it: when nothing new has
come for ``GAP_S``, the missing ones below the smallest that waits are given up. A number that has
been due, or was given up, is used: coming again it is an old one, and what of those is not at hand
any more is not due a second time.

A number that would leave more than ``MAX_MISSING`` unused before it is not taken: each of them is
written down when it is given up.
"""

import heapq
from collections import deque

GAP_S = 60.0
"""``forward_backward_custom`` of the Tinker SDK takes two numbers for each chunk and never uses
them if the user's loss raises; a chunk under way takes less than its HTTP timeout, which is this.
"""
MAX_MISSING = 10_000
"""Numbers that others wait for at once. A client sends the parts of one gradient in any order, and
takes two numbers for each of those that it means to send: 5,000 parts are 5 million data."""


class Order:
    """The numbers of one model."""

    def __init__(self, start: int = 0) -> None:
        """``start``: the smallest number that may still come."""
        self.next = start
        """The smallest number that has not been due."""
        self._been = 0
        """All before it have been due here."""
        self._again: deque[int] = deque()
        """Those that have been and are due once more, before all others."""
        self._here: list[int] = []
        self._known: set[int] = set()
        self._last_s = 0.0

    def put(self, seq: int, now: float | None) -> bool:
        """A request of this number has come; False if there was one, or its time is past. Without
        a time, it has not: the number was given up."""
        if self.used(seq):
            return False
        self._known.add(seq)
        heapq.heappush(self._here, seq)
        if now is not None:
            self._last_s = now
        return True

    def used(self, seq: int) -> bool:
        """True if the number cannot be given to a new request."""
        return seq < self.next or seq in self._known

    def too_far(self, seq: int) -> bool:
        """True if too many would be missing before it."""
        return seq - self.next - len(self._here) > MAX_MISSING

    def take(self) -> int | None:
        """The number that is due, which is then used; None if it has not come."""
        if self._again:
            return self._again.popleft()
        if not self._here or self._here[0] != self.next:
            return None
        seq = heapq.heappop(self._here)
        self._known.discard(seq)
        self.next = self._been = seq + 1
        return seq

    def gives_up_at(self) -> float | None:
        """When the numbers missing now are given up; None if none holds another up."""
        held_up = not self._again and self._here and self._here[0] != self.next
        return self._last_s + GAP_S if held_up else None

    def missing(self) -> range:
        """Numbers that hold up one that is here."""
        return range(self.next, self._here[0] if self._here else self.next)

    @property
    def n_waiting(self) -> int:
        """Requests that are here and were not due yet, or are again."""
        return len(self._again) + len(self._here)

    def rewind(self, seq: int, here: list[int], now: float | None = None) -> None:
        """Go on from ``seq``, with ``here`` at hand: what of that has been due is so again; what
        has been and is not at hand is not. With a time, they have all come then."""
        self.next = max(self._been, seq)
        self._again = deque(sorted(s for s in here if seq <= s < self.next))
        self._here = sorted(s for s in here if s >= self.next)
        self._known = set(self._here)
        if now is not None:
            self._last_s = now
