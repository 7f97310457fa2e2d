"""Samples of a house in memory: drawn as they come, numbered per sampler."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fake_rows import Request, Sampler

from plait.core.errors import PlaitError
from plait.core.ids import OpId
from plait.core.operations import SampleResult
from plait.service.ports import CLONE, Ended, Failed, Ready, Who
from plait.service.ticket import operation
from plait.service.work import Kind, SampleWork

if TYPE_CHECKING:
    from fake_house import FakeHouse


class Samples:
    """Those of all samplers."""

    def __init__(self, house: "FakeHouse") -> None:
        self.house = house

    async def sample(self, who: Who, sampler_id: str, seq: int, work: SampleWork) -> str:
        sampler = self.house.sampler(who, sampler_id)
        self.house.alive(who, sampler.session_id)
        if (known := sampler.requests.get(seq)) is not None:
            return known.request_id
        request_id = f"{sampler_id}:{seq}:{self.house.boot}"
        request = Request(request_id=request_id, seq=seq, kind=Kind.SAMPLE)
        sampler.requests[seq] = request
        if request_id not in self.house.held:
            self._draw(sampler, request, work)
        return request_id

    def _draw(self, sampler: Sampler, request: Request, work: SampleWork) -> None:
        house = self.house
        try:
            op = operation(work, OpId(request.request_id), sampler.run, sampler.version)
            house.rollout.add(op)
            results: dict[OpId, SampleResult] = {}
            while house.rollout.has_work():
                results |= dict(house.rollout.step().finished)
            body = house.codec.write(Kind.SAMPLE, work, results[op.op_id])
            request.end(Ready(kind=Kind.SAMPLE, body=body))
        except PlaitError as error:
            request.end(Failed(error=str(error), category="user"))
        sampler.order.append(request)
        sampler.news.set()

    async def ended(
        self, who: Who, sampler_id: str, clone: int, cursor: int, *, wait_s: float
    ) -> tuple[Sequence[Ended], int]:
        sampler = self.house.sampler(who, sampler_id)
        if len(sampler.order) <= cursor:
            sampler.news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sampler.news.wait(), wait_s)
        found = [
            Ended(
                request_id=request.request_id,
                failed=isinstance(request.outcome, Failed),
                n_bytes=len(request.outcome.body) if isinstance(request.outcome, Ready) else 0,
            )
            for request in sampler.order[cursor:]
            if request.seq // CLONE == clone
        ]
        return found, len(sampler.order)
