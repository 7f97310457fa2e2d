"""Reading: the bodies of a line's requests, off the event loop and ahead of their turn.

A custom loss is looked up here too: what is carried out has all that it needs, so gradients and
steps reach the engine in the order of their numbers.
"""

import asyncio
from dataclasses import replace

from plait.service.entry import Entry
from plait.service.log import Log
from plait.service.work import Batch, Codec, Work


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
        work = await asyncio.to_thread(self._codec.read, entry.kind, body)
        if isinstance(work, Batch) and work.loss_id:
            loss = await self._log.loss(self._model_id, work.loss_id)
            return replace(work, loss=loss)
        return work
