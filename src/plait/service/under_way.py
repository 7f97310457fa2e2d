"""Under way: what a line is carrying out at the moment. An error of a task is the line's: it is
raised when the line looks.
"""

import asyncio
from collections.abc import Callable, Coroutine


class UnderWay:
    """Requests by number, so many at once."""

    def __init__(self, n: int, *, on_end: Callable[[], None]) -> None:
        self._room, self._on_end = asyncio.Semaphore(n), on_end
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def begin(self, seq: int, work: Coroutine[None, None, None]) -> None:
        """Begin one as soon as there is room."""
        try:
            await self._room.acquire()
        except BaseException:
            work.close()
            raise
        task = asyncio.create_task(work, name=f"carry-{seq}")
        task.add_done_callback(self._ended)
        self.tasks[seq] = task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._room.release()
        self._on_end()

    def collect(self) -> None:
        """Look at what has ended."""
        for seq in [s for s, task in self.tasks.items() if task.done()]:
            self.tasks.pop(seq).result()

    async def settle(self) -> None:
        """Wait for all of it."""
        while self.tasks:
            seq, task = next(iter(self.tasks.items()))
            await asyncio.wait({task})
            del self.tasks[seq]
            task.result()

    async def ended_before(self, seq: int) -> None:
        """Wait for what has a smaller number; how it ended is not looked at."""
        if before := [task for s, task in self.tasks.items() if s < seq]:
            await asyncio.wait(before)

    async def drop(self) -> None:
        """Give up all of it."""
        tasks, self.tasks = list(self.tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
