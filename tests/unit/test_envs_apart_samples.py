"""What an environment's process has under way, asked in odd orders."""

import asyncio
from typing import Any

from plait.envs.apart.samples import Samples


class Never:
    """A source whose environments never start."""

    def make(self, index: int, split: str) -> Any:
        return self

    async def start(self) -> tuple[int, ...]:
        await asyncio.Event().wait()
        return ()


async def test_a_request_that_is_given_up_before_it_has_begun_is_answered() -> None:
    answered: asyncio.Queue[int] = asyncio.Queue()
    samples = Samples(Never(), lambda number, body: answered.put_nowait(number))  # type: ignore[arg-type]
    samples.take(1, {"kind": "start", "sample": 1, "index": 0, "split": "train"})
    samples.take(2, {"kind": "cancel", "number": 1})
    async with asyncio.timeout(5):
        assert await answered.get() == 1
