"""Slots: adapters of outside samplers on the rollout workers: loads, drops, and who waits for one.

Which stays, gives way or is closed, ``policies.slots`` decides. Who wants one that is closed waits
behind those that wait already. One that will be wanted soon can be loaded before it is
(``prepare``), where that takes nobody's turn.

Invariants: never more than ``n`` loaded, and ``kept`` of them idle; none is dropped while it draws;
waits are first come, first served, so each ends; a load that fails costs its slot nothing.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from plait.policies.routing import Policy
from plait.policies.slots import KEPT_IDLE, SlotView, closing, room, surplus

Load = Callable[[Policy, str], Awaitable[None]]
Drop = Callable[[Policy], None]


@dataclass(slots=True)
class _Slot:
    loaded: asyncio.Task[None]
    n_used: int = 0
    n_served: int = 0
    closed: bool = False


@dataclass(slots=True)
class _Waiter:
    policy: Policy
    path: str
    turn: asyncio.Future[_Slot]
    """Its slot, entered already."""


class Slots:
    """Adapters loaded for outside samplers."""

    def __init__(self, n: int, *, load: Load, drop: Drop, kept: int = KEPT_IDLE) -> None:
        self._n, self._kept, self._load, self._drop = n, kept, load, drop
        self._slots: OrderedDict[Policy, _Slot] = OrderedDict()
        """Least recently used first."""
        self._waiters: list[_Waiter] = []

    def __len__(self) -> int:
        return len(self._slots)

    def use(self, policy: Policy) -> bool:
        """Begin a sample with it, if it is loaded and takes more."""
        slot = self._slots.get(policy)
        if slot is None or slot.closed or not _is_loaded(slot):
            return False
        self._enter(policy, slot)
        self._close_for_waiters()
        return True

    async def acquire(self, policy: Policy, path: str) -> None:
        """Begin a sample with it as soon as it is loaded; raises what the load raises."""
        slot = self._slots.get(policy)
        if slot is not None and not slot.closed:
            self._enter(policy, slot)
        elif slot is None and not self._waiters and self._has_room():
            slot = self._begin(policy, path)
            self._enter(policy, slot)
        else:
            slot = await self._wait(policy, path)
        try:
            await asyncio.shield(slot.loaded)
        except BaseException:
            self._leave(policy, slot)
            raise

    def prepare(self, policy: Policy, path: str) -> None:
        """Begin to load it, unless somebody waits for room or there is none. It is idle then, as
        any other that nobody draws with."""
        if policy not in self._slots and not self._waiters and self._has_room():
            self._begin(policy, path)

    def release(self, policy: Policy) -> None:
        """A sample has ended."""
        self._leave(policy, self._slots[policy])

    def _enter(self, policy: Policy, slot: _Slot) -> None:
        slot.n_used += 1
        slot.n_served += 1
        self._slots.move_to_end(policy)

    def _leave(self, policy: Policy, slot: _Slot) -> None:
        slot.n_used -= 1
        self._settle(policy, slot)

    def _settle(self, policy: Policy, slot: _Slot) -> None:
        """Drop a slot that has come to its end, and give room to who waits."""
        failed = slot.loaded.done() and not _is_loaded(slot)
        if not slot.n_used and (slot.closed or failed) and self._slots.get(policy) is slot:
            self._remove(policy)
        for idle in surplus(self._views(), self._kept):
            self._remove(idle)
        self._serve_waiters()

    def _has_room(self) -> bool:
        """Room for one more, made if need be."""
        verdict = room(self._views(), self._n)
        if verdict.gives_way is not None:
            self._remove(verdict.gives_way)
        return verdict.there

    def _views(self) -> list[SlotView]:
        return [
            SlotView(policy=p, n_used=s.n_used, n_served=s.n_served, closed=s.closed)
            for p, s in self._slots.items()
        ]

    def _remove(self, policy: Policy) -> None:
        slot = self._slots.pop(policy)
        if not slot.loaded.done():
            slot.loaded.cancel()
        self._drop(policy)

    def _begin(self, policy: Policy, path: str) -> _Slot:
        slot = _Slot(asyncio.ensure_future(self._load(policy, path)))
        slot.loaded.add_done_callback(lambda _: self._settle(policy, slot))
        self._slots[policy] = slot
        return slot

    async def _wait(self, policy: Policy, path: str) -> _Slot:
        waiter = _Waiter(policy, path, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._close_for_waiters()
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.turn.done() and not waiter.turn.cancelled():
                self._leave(policy, waiter.turn.result())
            raise

    def _serve_waiters(self) -> None:
        full = False
        for waiter in list(self._waiters):
            slot = self._slots.get(waiter.policy)
            if slot is not None and slot.closed:
                continue  # its own last samples are still under way
            if slot is not None:
                self._enter(waiter.policy, slot)
            elif full or not self._has_room():
                full = True  # the first has first claim to the next room
                continue
            else:
                slot = self._begin(waiter.policy, waiter.path)
                self._enter(waiter.policy, slot)
            self._waiters.remove(waiter)
            waiter.turn.set_result(slot)
        self._close_for_waiters()

    def _close_for_waiters(self) -> None:
        """Close as many as there are policies that wait for room."""
        if wanted := len({w.policy for w in self._waiters}):
            for policy in closing(self._views(), wanted):
                self._slots[policy].closed = True


def _is_loaded(slot: _Slot) -> bool:
    task = slot.loaded
    return task.done() and not task.cancelled() and task.exception() is None
