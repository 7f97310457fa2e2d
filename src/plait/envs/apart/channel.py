"""Channel: the head's end of one environment's process: many questions at once, by number.

Invariants: one slow answer holds up no other; nothing that comes back is more than bytes of a
bounded number; whoever waits is told when the process has ended, and why. The process is ended by
an answer that nobody asked for, by one that is too long, and by a question that was given up (a
deadline, a cancelled job) and has not stopped within ``GRACE_S``: then its loop is blocked, and all
of its samples with it.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from plait.cluster.child import Child, ChildDied
from plait.envs.apart.replies import MAX_REPLY_BYTES

GRACE_S = 5.0
"""An ``await`` that is cancelled returns at once; this is for a busy machine."""


class Channel:
    """One process, which it owns from now on."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._given_up: dict[int, asyncio.TimerHandle] = {}
        self._n = 0
        self._reason = ""
        self._reading = asyncio.create_task(self._read(), name=f"environment-{child.pid}")

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def open(self) -> bool:
        return not self._reason and self._child.alive

    @property
    def reason(self) -> str:
        """Why it has ended, or is being ended."""
        return self._reason

    async def ask(self, request: Mapping[str, Any]) -> bytes:
        """The answer to a request; ChildDied. Who is cancelled meanwhile has given it up."""
        number = self.tell(request)
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            with suppress(ChildDied):  # then the reader finds so too, and tells why
                await self._child.drained()
            return bytes(await answer)
        finally:
            answer.cancel()  # of no effect on one that has come; else nobody would read its error
            if number in self._asked:
                self._give_up(number)

    def tell(self, request: Mapping[str, Any]) -> int:
        """Send what needs no answer; its number. ChildDied if it has ended."""
        if self._reason:
            raise ChildDied(self._reason)
        self._n += 1
        self._child.send(self._n, json.dumps(request).encode())
        return self._n

    async def aclose(self, reason: str) -> None:
        """End the process and all that it has started."""
        self._end(reason)
        await asyncio.wait({self._reading})
        await self._child.kill()  # the reader has, unless it was cancelled before it began

    def _give_up(self, number: int) -> None:
        if self._reason:
            return
        self.tell({"kind": "cancel", "number": number})
        why = (
            f"its event loop was blocked: a sample that was given up did not stop in {GRACE_S:g} s"
        )
        loop = asyncio.get_running_loop()
        self._given_up[number] = loop.call_later(GRACE_S, self._end, why)

    def _answer(self, number: int, body: bytes) -> None:
        answer = self._asked.pop(number, None)
        if answer is None:
            raise ChildDied("it answered what it was not asked: does it use plait's own channel?")
        if (timer := self._given_up.pop(number, None)) is not None:
            timer.cancel()
        if not answer.done():
            answer.set_result(body)

    def _end(self, reason: str) -> None:
        if not self._reason:  # else it is being ended: that takes a moment, and is not disturbed
            self._reason = reason
            self._reading.cancel()

    async def _read(self) -> None:
        try:
            while True:
                self._answer(*await self._child.read(MAX_REPLY_BYTES))
        except ChildDied as error:
            self._reason = self._reason or str(error)
        finally:
            self._reason = self._reason or "it was ended"
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(ChildDied(self._reason))
            self._asked.clear()
            for timer in self._given_up.values():
                timer.cancel()
            await self._child.kill()
