"""Entry: one numbered request in memory, from its arrival until its answer has been fetched.

What it carries is in the store; the body is kept here only where it is about to be read, the answer
only until there are newer ones.
"""

import asyncio
from dataclasses import dataclass, field

from plait.service.ports import Category, Failed, Ready
from plait.service.work import Kind, Work

GRADIENTS = (Kind.FORWARD_BACKWARD,)
"""What has an effect that lies in a worker's memory until a step commits it."""


_PAST = asyncio.Event()
_PAST.set()
"""Of all that have ended: nobody waits on it, and a line may remember very many."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """A request of a line."""

    seq: int
    kind: Kind
    accepted_at: float
    body: bytes | None = None
    read: asyncio.Task[Work] | None = None
    """Its work, once somebody has begun to read it."""
    fault: Category | None = None
    """Whose its failure is; None of what has not failed."""
    ended_at: float | None = None
    outcome: Ready | Failed | None = None
    """How it ended; None while it has not, and where only the store knows."""
    durable: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended(self) -> bool:
        """True once its end is in the store."""
        return self.ended_at is not None

    @property
    def failed(self) -> bool:
        """True once its end, a failure, is in the store."""
        return self.fault is not None

    @property
    def again(self) -> bool:
        """True for what has ended and must yet be carried out for its effect."""
        return self.ended and not self.failed and self.kind in GRADIENTS

    def end(self, outcome: Ready | Failed, now: float) -> None:
        """Its end is in the store."""
        self.outcome, self.ended_at = outcome, now
        self.fault = outcome.category if isinstance(outcome, Failed) else None
        self.body, self.read = None, None
        self.past()

    def past(self) -> None:
        """Nobody needs to wait for it any more."""
        self.durable.set()
        self.over.set()
        self.durable = self.over = _PAST
