"""Endings: how the requests of a line end: in the store before anybody is told, and the newest
answers in memory.
"""

import asyncio
import logging
from collections import deque

from plait.core.errors import PlaitError
from plait.runtime.whole import whole
from plait.service.entry import GRADIENTS, Entry
from plait.service.held import Held
from plait.service.log import Log, Shed
from plait.service.ports import Failed, Ready
from plait.service.stamps import Stamps
from plait.service.work import COMMITS

log_ = logging.getLogger(__name__)

KEPT = 32
"""Answers in memory; older ones are read from the store."""
AGAIN_S = 1.0
"""Before another try where the disk is full."""


class Endings:
    """Those of one model's requests."""

    def __init__(self, model_id: str, log: Log, held: Held, stamps: Stamps) -> None:
        self._model_id, self._log, self._held, self._stamps = model_id, log, held, stamps
        self._kept: deque[Entry] = deque()

    async def end(self, entry: Entry, outcome: Ready | Failed) -> None:
        """Write down how a request ended, however often that takes."""
        now = self._stamps.ending[entry.seq] = self._stamps.next()
        try:
            while True:
                if await whole(self._try_to_end(entry, outcome, now)):
                    return
                await asyncio.sleep(AGAIN_S)
        finally:
            self._stamps.ending.pop(entry.seq, None)

    async def _try_to_end(self, entry: Entry, outcome: Ready | Failed, now: float) -> bool:
        shed = _shed(entry, outcome)
        if not await self._log.end(self._model_id, entry.seq, outcome, now=now, shed=shed):
            return False
        self._stamps.ending.pop(entry.seq, None)  # before anybody can know
        entry.end(outcome, now)
        match shed:
            case "all":
                self._held.drop_through(entry.seq)
            case "own":
                self._held.drop(entry.seq)
        self._kept.append(entry)
        while len(self._kept) > KEPT:
            self._kept.popleft().outcome = None
        return True

    def failure(self, entry: Entry, error: Exception) -> Failed:
        """What the client is told of an error; one of ours is in the log."""
        if isinstance(error, PlaitError):
            mine = error.http_status < 500
            return Failed(error=str(error), category="user" if mine else "server")
        log_.error("request %s of %s", entry.seq, self._model_id, exc_info=error)
        text = f"a fault of the server ({type(error).__name__}): its log says more"
        return Failed(error=text, category="server")


def _shed(entry: Entry, outcome: Ready | Failed) -> Shed:
    """A gradient may have to be made again until a version has it; nothing else that has ended."""
    if isinstance(outcome, Failed):
        return "own"
    if entry.kind in COMMITS:
        return "all"
    return "none" if entry.kind in GRADIENTS else "own"
