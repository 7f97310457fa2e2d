"""Requests: numbered ones, samples and custom losses behind one port; an id says which it is."""

from collections.abc import Sequence

from plait.core.custom_losses import CustomLoss
from plait.service.custom_losses import CustomLosses
from plait.service.lines import Lines
from plait.service.ports import Ended, Outcome, Waiting, Who
from plait.service.sample_requests import SampleRequests
from plait.service.work import Kind, SampleWork


class Requests:
    """``ports.Requests``."""

    def __init__(self, lines: Lines, samples: SampleRequests, losses: CustomLosses) -> None:
        self._lines, self._samples, self._losses = lines, samples, losses

    async def submit(
        self, who: Who, session_id: str, model_id: str, seq: int, kind: Kind, body: bytes
    ) -> str:
        """Make a request durable and queue it; its id."""
        return await self._lines.submit(who, session_id, model_id, seq, kind, body)

    async def skip(self, who: Who, model_id: str, seq: int, reason: str) -> None:
        """Use up a number."""
        await self._lines.skip(who, model_id, seq, reason)

    async def sample(self, who: Who, sampler_id: str, seq: int, work: SampleWork) -> str:
        """Queue a sample; its id."""
        return await self._samples.sample(who, sampler_id, seq, work)

    async def create_loss(self, who: Who, session_id: str, number: int, loss: CustomLoss) -> str:
        """Keep a custom loss; its id."""
        return await self._losses.create(who, session_id, number, loss)

    async def outcome(self, who: Who, request_id: str, *, wait_s: float) -> Outcome:
        """What became of a request."""
        if self._losses.owns(request_id):
            return await self._losses.outcome(who, request_id)
        if self._samples.owns(request_id):
            return await self._samples.outcome(who, request_id, wait_s=wait_s)
        return await self._lines.outcome(who, request_id, wait_s=wait_s)

    async def waits(self, who: Who, model_id: str) -> Waiting | None:
        """What a model's numbered requests wait for."""
        return await self._lines.waits(who, model_id)

    async def cancel(self, who: Who, request_id: str) -> None:
        """Stop a sample; anything else is left alone."""
        if self._samples.owns(request_id):
            await self._samples.cancel(who, request_id)

    async def ended(
        self, who: Who, sampler_id: str, clone: int, cursor: int, *, wait_s: float
    ) -> tuple[Sequence[Ended], int]:
        """Samples that ended after a cursor."""
        return await self._samples.ended(who, sampler_id, clone, cursor, wait_s=wait_s)

    async def forget(self, who: Who, request_ids: Sequence[str]) -> None:
        """Let answers of samples go."""
        await self._samples.forget(who, request_ids)
