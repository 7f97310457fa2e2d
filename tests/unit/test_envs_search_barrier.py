"""plait.envs.search.barrier: one batch once all have asked or ended; nobody waits for ever."""

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from plait.core.errors import EnvironmentFailure
from plait.envs.search.barrier import Barrier


class Tool:
    """Answers in capitals and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    async def __call__(self, queries: Sequence[str]) -> list[str]:
        self.batches.append(sorted(queries))
        await asyncio.sleep(0.01)
        return [q.upper() for q in queries]


def members(barrier: Barrier, n: int) -> list[int]:
    return [barrier.join() for _ in range(n)]


async def test_a_batch_leaves_when_the_last_member_has_asked() -> None:
    tool = Tool()
    barrier = Barrier(tool, patience_s=30)
    a, b, c = members(barrier, 3)
    asked = [asyncio.create_task(barrier.ask(m, q)) for m, q in ((a, "x"), (b, "y"))]
    await asyncio.sleep(0.05)
    assert tool.batches == []
    assert await barrier.ask(c, "z") == "Z"
    assert await asyncio.gather(*asked) == ["X", "Y"]
    assert tool.batches == [["x", "y", "z"]]


async def test_a_member_that_ends_without_a_call_is_not_waited_for() -> None:
    tool = Tool()
    barrier = Barrier(tool, patience_s=30)
    a, b = members(barrier, 2)
    asked = asyncio.create_task(barrier.ask(a, "x"))
    await asyncio.sleep(0)
    barrier.leave(b)
    barrier.leave(b)
    assert await asyncio.wait_for(asked, 1) == "X"


async def test_a_straggler_is_waited_for_with_patience_only() -> None:
    tool = Tool()
    barrier = Barrier(tool, patience_s=0.1)
    a, b = members(barrier, 2)
    started = time.monotonic()
    assert await barrier.ask(a, "x") == "X"
    assert 0.08 < time.monotonic() - started < 1
    assert barrier.n_impatient == 1
    late = asyncio.create_task(barrier.ask(b, "y"))
    barrier.leave(a)
    assert await late == "Y"
    assert tool.batches == [["x"], ["y"]]


async def test_a_cancelled_caller_leaves_and_frees_the_others() -> None:
    tool = Tool()
    barrier = Barrier(tool, patience_s=30)
    a, b, c = members(barrier, 3)
    waits = [asyncio.create_task(barrier.ask(m, "q")) for m in (a, b)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.wait([waits[0]])
    barrier.leave(c)
    assert await asyncio.wait_for(waits[1], 1) == "Q"
    assert tool.batches == [["q"]]


async def test_samples_of_uneven_length_never_deadlock() -> None:
    """Each asks 0 to 5 times with pauses of its own; the batches shrink as samples end."""
    rng = random.Random(0)
    tool = Tool()
    barrier = Barrier(tool, patience_s=30)

    async def sample(member: int, n_calls: int, pauses: list[float]) -> int:
        for pause in pauses[:n_calls]:
            await asyncio.sleep(pause)
            assert await barrier.ask(member, f"{member}") == f"{member}"
        barrier.leave(member)
        return n_calls

    plan = [
        (m, rng.randint(0, 5), [rng.random() / 50 for _ in range(5)]) for m in members(barrier, 20)
    ]
    calls = await asyncio.wait_for(asyncio.gather(*(sample(*p) for p in plan)), 10)
    sizes = [len(b) for b in tool.batches]
    assert sum(sizes) == sum(calls)
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == max(calls) > 3
    assert barrier.idle
    assert barrier.n_impatient == 0


async def test_a_failure_reaches_whom_it_concerns() -> None:
    async def answer(queries: Sequence[str]) -> list[object]:
        if "all" in queries:
            raise EnvironmentFailure("the tool is gone")
        return [EnvironmentFailure("not this one") if q == "bad" else q for q in queries]

    barrier = Barrier(answer, patience_s=30)
    a, b = members(barrier, 2)
    good, bad = await asyncio.gather(
        barrier.ask(a, "ok"), barrier.ask(b, "bad"), return_exceptions=True
    )
    assert good == "ok"
    assert isinstance(bad, EnvironmentFailure)
    both = await asyncio.gather(barrier.ask(a, "all"), barrier.ask(b, "ok"), return_exceptions=True)
    assert [str(e) for e in both] == ["the tool is gone"] * 2


async def test_closing_fails_who_waits() -> None:
    barrier = Barrier(Tool(), patience_s=30)
    a, _ = members(barrier, 2)
    asked = asyncio.create_task(barrier.ask(a, "x"))
    await asyncio.sleep(0)
    await barrier.aclose()
    with pytest.raises(EnvironmentFailure, match="closed"):
        await asked
