"""Slots: the least recently used gives way, nobody is starved, a load that fails costs nothing."""

import asyncio

import pytest

from plait.core.errors import ModelError
from plait.core.ids import RunId
from plait.policies.routing import Policy
from plait.policies.slots import KEPT_AHEAD, MIN_SERVED
from plait.service.slots import Slots

A, B, C, D = ((RunId(name), 1) for name in "abcd")


class Workers:
    """Loads when told to."""

    def __init__(self, n: int, *, at_once: bool = True, kept: int = 8) -> None:
        self.slots = Slots(n, load=self.load, drop=self.drop, kept=kept)
        self.told: list[str] = []
        self.loaded: set[Policy] = set()
        self.most = 0
        self._at_once = at_once
        self.gate = asyncio.Event()

    async def load(self, policy: Policy, path: str) -> None:
        self.told.append(f"+{policy[0]}")
        if not self._at_once:
            await self.gate.wait()
        if path == "bad":
            raise ModelError("no such module")
        self.loaded.add(policy)
        self.most = max(self.most, len(self.loaded))

    def drop(self, policy: Policy) -> None:
        self.told.append(f"-{policy[0]}")
        self.loaded.discard(policy)


async def soon(task: "asyncio.Task[None]") -> bool:
    """Whether it is done once everything that can go on has."""
    for _ in range(20):
        await asyncio.sleep(0)
    return task.done()


async def test_the_least_recently_used_gives_way() -> None:
    workers = Workers(2)
    slots = workers.slots
    for policy in (A, B):
        await slots.acquire(policy, "p")
        slots.release(policy)
    assert slots.use(A)
    slots.release(A)
    await slots.acquire(C, "p")
    assert workers.told == ["+a", "+b", "-b", "+c"]
    assert not slots.use(B)
    assert slots.use(A)


async def test_one_load_serves_all_who_want_it() -> None:
    workers = Workers(2, at_once=False)
    asked = [asyncio.create_task(workers.slots.acquire(A, "p")) for _ in range(5)]
    assert not await soon(asked[0])
    workers.gate.set()
    await asyncio.gather(*asked)
    assert workers.told == ["+a"]
    for _ in asked:
        workers.slots.release(A)


async def test_nothing_is_dropped_while_it_draws_and_who_waits_gets_its_turn() -> None:
    workers = Workers(1)
    slots = workers.slots
    await slots.acquire(A, "p")
    waits = asyncio.create_task(slots.acquire(B, "p"))
    assert not await soon(waits)
    n = 1
    while slots.use(A):  # others go on with it, but not for ever
        n += 1
        assert n <= MIN_SERVED
    assert n == MIN_SERVED
    late = asyncio.create_task(slots.acquire(A, "p"))
    for _ in range(n):
        assert not await soon(waits)
        slots.release(A)
    assert await soon(waits)
    assert workers.told == ["+a", "-a", "+b"]
    assert not await soon(late)
    slots.release(B)
    assert await soon(late)
    assert workers.most == 1


async def test_waits_are_served_in_order_and_those_of_one_policy_together() -> None:
    workers = Workers(1)
    slots = workers.slots
    await slots.acquire(A, "p")
    waits = [asyncio.create_task(slots.acquire(p, "p")) for p in (B, C, B, D)]
    await soon(waits[0])
    slots.release(A)
    assert [await soon(w) for w in waits] == [True, False, True, False]
    slots.release(B)
    slots.release(B)
    assert [await soon(w) for w in waits] == [True, True, True, False]
    slots.release(C)
    assert await soon(waits[3])


async def test_a_load_that_fails_is_told_and_leaves_its_slot() -> None:
    workers = Workers(1)
    asked = [asyncio.create_task(workers.slots.acquire(A, "bad")) for _ in range(3)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(r, ModelError) for r in results)
    assert len(workers.slots) == 0
    await workers.slots.acquire(A, "p")
    assert workers.slots.use(A)


async def test_who_gives_up_waiting_holds_up_nobody() -> None:
    workers = Workers(1)
    slots = workers.slots
    await slots.acquire(A, "p")
    gone, waits = (asyncio.create_task(slots.acquire(p, "p")) for p in (B, C))
    await soon(gone)
    gone.cancel()
    await soon(gone)
    slots.release(A)
    assert await soon(waits)
    assert workers.told == ["+a", "-a", "+c"]

    # Given up between its turn and the moment at which it notices.
    slots.release(C)
    workers = Workers(1)
    slots = workers.slots
    await slots.acquire(A, "p")
    gone, waits = (asyncio.create_task(slots.acquire(p, "p")) for p in (B, C))
    await soon(gone)
    slots.release(A)
    gone.cancel()
    assert await soon(waits)
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_only_the_latest_idle_ones_stay() -> None:
    workers = Workers(4, kept=2)
    for policy in (A, B, C):
        await workers.slots.acquire(policy, "p")
    for policy in (B, C):
        workers.slots.release(policy)
    assert workers.told == ["+a", "+b", "+c"]
    workers.slots.release(A)
    assert workers.told == ["+a", "+b", "+c", "-a"], "the one that was asked for first"
    assert workers.slots.use(B)
    await workers.slots.acquire(D, "p")
    workers.slots.release(D)
    assert workers.told[4:] == ["+d"], "what is drawn with does not count"
    workers.slots.release(B)
    assert workers.told[5:] == ["-c"]


async def test_what_will_be_wanted_is_loaded_before_and_once() -> None:
    workers = Workers(2)
    slots = workers.slots
    slots.prepare(A, "p")
    await soon(asyncio.create_task(asyncio.sleep(0)))
    slots.prepare(A, "p")
    assert workers.told == ["+a"]
    assert slots.use(A), "it is there without a wait"
    slots.release(A)


async def test_what_is_prepared_takes_nobody_s_place() -> None:
    workers = Workers(1, kept=1)
    slots = workers.slots
    await slots.acquire(A, "p")
    slots.prepare(B, "p")
    assert workers.told == ["+a"], "all are drawn with"
    waits = asyncio.create_task(slots.acquire(C, "p"))
    await soon(waits)
    slots.release(A)
    assert await soon(waits)
    slots.release(C)
    slots.prepare(B, "p")
    await soon(waits)
    assert workers.told == ["+a", "-a", "+c", "-c", "+b"]
    assert len(slots) == 1


async def test_what_is_prepared_stays_until_it_is_wanted_and_the_latest_if_it_is_not() -> None:
    workers = Workers(2 * KEPT_AHEAD, kept=1)
    many = [(RunId(f"m{i}"), 1) for i in range(KEPT_AHEAD)]
    for policy in (A, B, *many):
        workers.slots.prepare(policy, "p")
        await soon(asyncio.create_task(asyncio.sleep(0)))
    assert workers.loaded == set(many)
    for policy in many[:2]:
        assert workers.slots.use(policy)
        workers.slots.release(policy)
    assert workers.loaded == set(many[1:])


async def test_one_that_cannot_be_prepared_is_tried_again_when_it_is_wanted() -> None:
    workers = Workers(1)
    workers.slots.prepare(A, "bad")
    await soon(asyncio.create_task(asyncio.sleep(0)))
    assert len(workers.slots) == 0
    await workers.slots.acquire(A, "p")
    assert workers.slots.use(A)
