"""Reading: the bodies of a line's requests, off the event loop and ahead of their turn."""

import asyncio

from plait.service.entry import Entry
from plait.service.log import Log
from plait.service.work import Codec, Work


class Reading:
    """Those of one model's requests."""

    def __init__(self, model_id: str, log: Log, codec: Codec) -> None:
        self._model_id, self._log, self._codec = model_id, log, codec

    def begin(self, entry: Entry) -> None:
        """See to it that a request's work will be there, if it is to be carried out."""
        if entry.read is None and (not entry.ended or entry.again):
            entry.read = asyncio.create_task(self.read(entry))
            entry.read.add_done_callback(lambda t: t.cancelled() or t.exception())

    async def read(self, entry: Entry) -> Work:
        """Its work, from the body at hand or in the store; raises what is wrong with it."""
        body, entry.body = entry.body, None
        if body is None:
            body = await self._log.body(self._model_id, entry.seq)
        return await asyncio.to_thread(self._codec.read, entry.kind, body)
