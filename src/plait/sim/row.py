"""Row: one sample's turn in a decode batch.

What it holds, how far it has to go, and what its end means to others; the batch keeps its account
of it here. Left to others: when it joins and leaves (``engine``), its sample's turns (``portion``).
"""

from typing import Any


class Row:
    """One sample's turn in a batch."""

    __slots__ = (
        "base", "compute", "context", "end", "held_0", "keep", "left", "more", "order",
        "portion", "sample", "shared", "since_s", "spent_0", "turn",
    )  # fmt: skip

    def __init__(self, portion: Any, sample: int, context: int, shared: int, left: int) -> None:
        self.portion, self.sample, self.turn = portion, sample, 0
        self.context = context
        """Tokens so far, prompt included."""
        self.shared = shared
        """Of these, what is counted with other rows (a group's prompt)."""
        self.compute = 0
        """Tokens whose keys and values must be computed before it goes on."""
        self.left = left
        """Tokens that it has yet to draw in this turn."""
        self.more = False
        """Another turn follows, so its end is waited for."""
        self.keep = 1
        """How soon its cache is given up while it waits for a tool, 0 first."""
        self.order = 0
        """Of joining."""
        self.end = 0.0
        self.base = 0.0
        self.since_s = 0.0
        self.held_0 = 0
        self.spent_0 = 0.0

    @property
    def held(self) -> int:
        """Tokens of cache that are its own."""
        return self.context - self.shared
