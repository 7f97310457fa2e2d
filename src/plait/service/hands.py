"""Hands: what carries out the work of a line, as the line sees it (``carry`` is it)."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from plait.service.entry import Entry
from plait.service.work import Work


class Down(Exception):
    """What carries out work is gone for the moment: nothing is known of what was under way."""

    def __init__(self, why: str, *, position: int = 0) -> None:
        """``position``: among those that wait for the same, if there is a queue."""
        super().__init__(why)
        self.position = position


class Hands(Protocol):
    """What carries out the work of one model."""

    async def committed(self) -> tuple[int, Callable[[Work], bytes] | None]:
        """The number of the request that committed the model's last version (-1: none did) and what
        tells its answer again."""

    async def take_up(self) -> None:
        """Bring the model, if it was made, to its last committed version: nothing that came after
        is left of it. Down."""

    def held(self) -> str:
        """Why the tenant's work does not start now; empty if it may."""

    def carry(self, entry: Entry, work: Work) -> Awaitable[bytes]:
        """Carry out; the answer's body. Down, or a PlaitError that ends the request."""

    def idle(self) -> bool:
        """True if nothing is lost by letting the model go."""

    async def leave(self, *, ended: str) -> None:
        """Free what the model holds, if anything; ``ended``: for good, and why."""

    def waits(self) -> str:
        """Why its work is not being done at the moment, if there is a reason."""
