"""Waves: the samples of a batch take their turns together.

Free-running samples ask for their next turn whenever their environment has answered, so which of
them share a forward step is a matter of timing, and the last bits of a sum depend on it. In waves
the turn of every sample that is not over is asked for at once, in a fixed order: the same forward
steps every time, at the price that a batch waits for its slowest environment at each turn.
"""

import asyncio


class Waves:
    """One batch of ``n`` samples."""

    def __init__(self, n: int) -> None:
        self._n_playing = n
        self._waiting: dict[tuple[int, int], asyncio.Future[None]] = {}

    async def turn(self, place: tuple[int, int]) -> None:
        """Wait until all who still play are here; they go on in the order of their places."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[place] = future
        self._go_if_complete()
        try:
            await future
        finally:
            self._waiting.pop(place, None)

    def leave(self) -> None:
        """One sample is over: nobody waits for it any more."""
        self._n_playing -= 1
        self._go_if_complete()

    def _go_if_complete(self) -> None:
        if self._waiting and len(self._waiting) == self._n_playing:
            for _, future in sorted(self._waiting.items()):
                if not future.done():
                    future.set_result(None)
            self._waiting.clear()
