"""Slots: which loaded adapters of outside samplers stay, give way, or are closed. Pure.

More policies are sampled than may be loaded at once: the one that has not been used for longest
gives way. Where all are in use, the least recently used is *closed*: it takes no more samples, and
gives way once those that it draws have ended. None is closed before it has begun ``MIN_SERVED``
samples, so that a load is worth its price.

Slots are given least recently used first. Who waits, and in which order, is the caller's; so are
loads and drops (``service/slots.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plait.policies.routing import Policy

MIN_SERVED = 16
"""Samples per load, where somebody wants as many: a load takes a worker the time of a few forward
steps."""

KEPT_IDLE = 8
"""Loaded adapters that nobody draws with: a script samples a new version in each step and says of
none that it was the last, and what is loaded costs memory on every worker (20 MB at rank 32) and a
load on every worker that is replaced."""

KEPT_AHEAD = 16
"""Loaded before anybody drew with them, and not drawn with yet: each is wanted in a moment, unless
its script samples something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """A loaded adapter."""

    policy: Policy
    n_used: int
    """Samples that are being drawn with it."""
    n_served: int
    """Samples that were begun with it since it was loaded."""
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Whether one more may be loaded."""

    there: bool
    gives_way: Policy | None = None
    """What must be dropped first."""


def room(slots: Sequence[SlotView], n: int) -> Room:
    """Room for one more among ``n``: the least recently used that is idle gives way."""
    if len(slots) < n:
        return Room(there=True)
    idle = next((slot.policy for slot in slots if not slot.n_used), None)
    return Room(there=idle is not None, gives_way=idle)


def surplus(slots: Sequence[SlotView], kept: int) -> tuple[Policy, ...]:
    """What is dropped though nobody wants its room: of those that were drawn with and are idle all
    but the ``kept`` latest, of those that were loaded ahead all but ``KEPT_AHEAD``."""
    idle = [slot.policy for slot in slots if not slot.n_used and slot.n_served]
    ahead = [slot.policy for slot in slots if not slot.n_served]
    return (*idle[: max(0, len(idle) - kept)], *ahead[: max(0, len(ahead) - KEPT_AHEAD)])


def closing(slots: Sequence[SlotView], n_wanted: int) -> tuple[Policy, ...]:
    """What is closed so that ``n_wanted`` policies that wait for room come to it: as many, less
    those that are closed already, of those that were worth their load."""
    n_more = n_wanted - sum(slot.closed for slot in slots)
    worth = [s.policy for s in slots if not s.closed and s.n_served >= MIN_SERVED]
    return tuple(worth[: max(0, n_more)])
