"""Sample requests: numbered samples of samplers, and their answers for as long as somebody may ask.

``(sampler, seq)`` is the idempotency key. A sample is re-executable, so nothing of it is in the
store: an id carries the server's ``boot``, and whoever asks a later life of the server for it is
told to ask anew (RequestLost), as after its answer was let go.

Invariants: a request ends in an answer or an error; an answer stays ``READ_S`` after it was first
read, or until it is told to be forgotten, and unread ones ``UNREAD_S``; all kept answers together
take ``MAX_BYTES`` at most, the oldest go first. So do logs of ends beyond ``MAX_LOGS`` of a
sampler: whose log went is told once more of what is still kept; its cursor goes on.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice

from plait.core.errors import NotFound, PlaitError, RequestLost, RunEnded
from plait.core.operations import SampleResult
from plait.service.ports import CLONE, Ended, Failed, Outcome, Ready, Who
from plait.service.sample_lane import SampleLane
from plait.service.ticket import Source, Ticket
from plait.service.work import Codec, Kind, SampleWork

log = logging.getLogger(__name__)

READ_S = 60.0
"""A client whose connection broke while it read asks again at once."""
UNREAD_S = 3600.0
"""A client that polls asks every 40 s; one that was suspended comes back within the hour or not."""
MAX_BYTES = 512 << 20
LONG_ROWS = 1024
"""Of a prompt: 20 tokens with log-probs in each of 32,000 places take 0.1 s to write."""
SWEPT = 32
"""Answers looked at when one is added: more leave than come."""

MAX_LOGS = 256
"""Of one sampler: a client and its copies ask for one each, and none of them has so many."""

Key = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Request:
    key: Key
    who: Who
    lane: SampleLane
    ticket: Ticket
    task: asyncio.Task[None] | None = None
    outcome: Ready | Failed | None = None
    lost: bool = False
    """The server stops: it is to be asked for again."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    ended_s: float = 0.0
    read_s: float | None = None

    @property
    def n_bytes(self) -> int:
        return len(self.outcome.body) if isinstance(self.outcome, Ready) else 0


@dataclass(slots=True)
class _Log:
    """Ends in order, from number ``first`` on: what a cursor counts."""

    ends: deque[Key]
    first: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    n_asking: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.ends)

    def after(self, cursor: int) -> list[Key]:
        return list(islice(self.ends, max(0, cursor - self.first), None))

    def trim(self, cursor: int) -> None:
        """What is before a cursor that the client sends has reached it."""
        while self.first < cursor and self.ends:
            self.ends.popleft()
            self.first += 1


class SampleRequests:
    """Samples under way and ended, of all samplers."""

    def __init__(
        self,
        *,
        source: Callable[[Who, str], Awaitable[Source]],
        lane: Callable[[str], Awaitable[SampleLane]],
        codec: Codec,
        boot: str,
        now: Callable[[], float],
    ) -> None:
        """``source`` resolves a sampler's id for a caller, ``lane`` finds a base model's."""
        self._source, self._lane, self._codec = source, lane, codec
        self._boot, self._now = boot, now
        self._requests: dict[Key, _Request] = {}
        self._ended: OrderedDict[Key, _Request] = OrderedDict()
        """Those with an answer, in order of their end."""
        self._logs: dict[tuple[str, int], _Log] = {}
        """By sampler and copy of its client, of those that ask for one; who asked last is last."""
        self._kept_bytes = 0

    def owns(self, request_id: str) -> bool:
        """True if the id is a sample's: those of models have no boot at the end."""
        return request_id.count(":") >= 4

    async def sample(self, who: Who, sampler_id: str, seq: int, work: SampleWork) -> str:
        """Queue a sample; its id. Asked again, the same."""
        source = await self._source(who, sampler_id)
        key = sampler_id, seq
        if key not in self._requests:
            lane = await self._lane(source.base_model)
            if key not in self._requests:  # while the lane was looked for
                request = _Request(key, who, lane, lane.ticket(source, work))
                self._requests[key] = request
                request.task = asyncio.create_task(self._carry_out(request))
                request.task.add_done_callback(lambda task: self._settle(request, task))
                self._sweep()
        return f"{sampler_id}:{seq}:{self._boot}"

    async def outcome(self, who: Who, request_id: str, *, wait_s: float) -> Outcome:
        """What became of a request, waiting up to ``wait_s`` for its end."""
        request = await self._find(who, request_id)
        if request.outcome is None and wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await request.done.wait()
        if request.lost:
            raise RequestLost(f"sample {request_id} was cut short by a restart: ask again")
        if request.outcome is None:
            return request.lane.waits_for(request.ticket)
        if request.read_s is None:
            request.read_s = self._now()
        return request.outcome

    async def cancel(self, who: Who, request_id: str) -> None:
        """Stop a sample that has not ended."""
        request = await self._find(who, request_id)
        if request.outcome is None and request.task is not None:
            request.task.cancel()

    async def ended(
        self, who: Who, sampler_id: str, clone: int, cursor: int, *, wait_s: float
    ) -> tuple[Sequence[Ended], int]:
        """Samples of one copy of a client that ended after ``cursor``, and the new cursor."""
        await self._source(who, sampler_id)
        log = self._log(sampler_id, clone, cursor)
        log.trim(cursor)
        if not log.after(cursor):
            log.news.clear()
            log.n_asking += 1
            try:
                async with asyncio.timeout(wait_s):
                    await log.news.wait()
            except TimeoutError:
                pass
            finally:
                log.n_asking -= 1
        found = (self._requests.get(key) for key in log.after(cursor))
        return tuple(self._as_ended(r) for r in found if r is not None), log.end

    def _log(self, sampler_id: str, clone: int, cursor: int) -> _Log:
        """That of one copy of a client; a new one takes the place of the sampler's oldest that
        nobody waits at."""
        group = sampler_id, clone
        if (log := self._logs.pop(group, None)) is None:
            log = _Log(
                deque(k for k in self._ended if k[0] == sampler_id and k[1] // CLONE == clone),
                first=cursor,
            )
            others = [g for g in self._logs if g[0] == sampler_id]
            idle = [g for g in others if not self._logs[g].n_asking]
            for oldest in idle[: max(0, len(others) + 1 - MAX_LOGS)]:
                del self._logs[oldest]
        self._logs[group] = log
        return log

    async def forget(self, who: Who, request_ids: Sequence[str]) -> None:
        """The answers have been read."""
        for request_id in request_ids:
            key = _key(request_id)
            request = None if key is None else self._requests.get(key)
            if request is not None and request.outcome and request.who.tenant_id == who.tenant_id:
                self._let_go(request)

    def end_samplers(self, sampler_ids: Collection[str]) -> None:
        """Their session is over: what is under way is cancelled."""
        for key, request in list(self._requests.items()):
            if key[0] in sampler_ids and request.task is not None:
                request.task.cancel()
        for group in [g for g in self._logs if g[0] in sampler_ids]:
            self._logs.pop(group).news.set()

    async def close(self) -> None:
        """The server stops: who still waits is to ask its next life."""
        tasks = []
        for request in self._requests.values():
            if request.outcome is None and request.task is not None:
                request.lost = True
                request.task.cancel()
                tasks.append(request.task)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, request: _Request) -> None:
        try:
            result = await request.lane.draw(request.ticket)
            body = await self._written(request.ticket.work, result)
            self._end(request, Ready(kind=Kind.SAMPLE, body=body))
        except RunEnded:  # the workers are being stopped
            request.lost = True
            self._end(request, Failed(error="the server stops", category="server"))
        except PlaitError as error:
            ours = error.http_status >= 500
            self._end(request, Failed(error=str(error), category="server" if ours else "user"))

    async def _written(self, work: SampleWork, result: SampleResult) -> bytes:
        """The answer; off the event loop where it tells much of a long prompt."""
        rows = (result.prompt_topk, result.prompt_targets, result.prompt_draws)
        if max(map(len, rows)) < LONG_ROWS:
            return self._codec.write(Kind.SAMPLE, work, result)
        return await asyncio.to_thread(self._codec.write, Kind.SAMPLE, work, result)

    def _settle(self, request: _Request, task: asyncio.Task[None]) -> None:
        """It is over; what has not told how was cancelled, perhaps before it began, or is a fault
        of ours."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("sample %s:%s", *request.key, exc_info=fault)
            self._end(request, Failed(error="internal error: see the log", category="server"))
        elif request.outcome is None:
            self._end(request, Failed(error="the sample was cancelled", category="user"))

    def _end(self, request: _Request, outcome: Ready | Failed) -> None:
        request.outcome, request.ended_s = outcome, self._now()
        if request.lost:  # asked for again, it begins anew
            self._requests.pop(request.key, None)
            request.done.set()
            return
        self._ended[request.key] = request
        self._kept_bytes += request.n_bytes
        sampler_id, seq = request.key
        if (log := self._logs.get((sampler_id, seq // CLONE))) is not None:
            log.ends.append(request.key)
            log.news.set()
            while (
                log.ends and log.ends[0] not in self._requests
            ):  # let go: no cursor is told of it any more
                log.ends.popleft()
                log.first += 1
        request.done.set()
        self._sweep()

    def _sweep(self) -> None:
        """Let go of answers that nobody will ask for; those that were read are near the front."""
        now = self._now()
        for request in list(_first(self._ended, SWEPT)):
            unread = request.read_s is None
            since = request.ended_s if request.read_s is None else request.read_s
            if self._kept_bytes > MAX_BYTES or now - since > (UNREAD_S if unread else READ_S):
                self._let_go(request)
            elif not unread:
                break

    def _let_go(self, request: _Request) -> None:
        self._requests.pop(request.key, None)
        if self._ended.pop(request.key, None) is not None:
            self._kept_bytes -= request.n_bytes

    async def _find(self, who: Who, request_id: str) -> _Request:
        key = _key(request_id)
        if key is None:
            raise NotFound(f"there is no request {request_id}")
        request = self._requests.get(key)
        if request is None or request.who.tenant_id != who.tenant_id:
            await self._source(who, key[0])  # NotFound to whom the sampler is none
            raise RequestLost(f"sample {request_id} is not known here any more: ask again")
        if not request_id.endswith(f":{self._boot}"):
            raise RequestLost(f"sample {request_id} is of an earlier life of the server: ask again")
        return request

    def _as_ended(self, request: _Request) -> Ended:
        failed = isinstance(request.outcome, Failed)
        return Ended(
            request_id=f"{request.key[0]}:{request.key[1]}:{self._boot}",
            failed=failed,
            n_bytes=request.n_bytes,
        )


def _first(ended: OrderedDict[Key, _Request], n: int) -> list[_Request]:
    return [request for request, _ in zip(ended.values(), range(n), strict=False)]


def _key(request_id: str) -> Key | None:
    """Sampler and number of an id ``{sampler}:{seq}:{boot}``."""
    sampler_id, _, rest = request_id.rpartition(":")[0].rpartition(":")
    return (sampler_id, int(rest)) if sampler_id and rest.isdecimal() else None
