"""Requests of a house in memory: carried out as soon as those before them have been."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fake_rows import Model, Request
from fake_samples import Samples
from fake_work import Carrying

from plait.core.custom_losses import CustomLoss
from plait.core.errors import NotFound, PlaitError, RequestLost
from plait.service import names, work
from plait.service.ports import Ended, Failed, ModelInfo, Outcome, Ready, Waiting, Who
from plait.service.work import Kind, SampleWork

if TYPE_CHECKING:
    from fake_house import FakeHouse

GAP_S = 0.5
"""After so long a number that has not come is used up (the real house waits for a minute)."""


class Requests:
    """The port: numbered requests of models, and samples."""

    def __init__(self, house: "FakeHouse") -> None:
        self.house = house
        self._samples = Samples(house)

    async def submit(
        self, who: Who, session_id: str, model_id: str, seq: int, kind: Kind, body: bytes
    ) -> str:
        house = self.house
        house.alive(who, session_id)
        if kind in (Kind.CREATE_MODEL, Kind.LOAD_MODEL) and model_id not in house.models_by_id:
            told = house.codec.read(kind, body)
            now = house.wall()
            assert isinstance(told, work.CreateModel | work.LoadModel)
            lora = told.lora if isinstance(told, work.CreateModel) else None
            if lora is None:
                lora = house.checkpoint(who, told.path).lora  # type: ignore[union-attr]
            house.models_by_id[model_id] = Model(
                who=who,
                info=ModelInfo(
                    model_id=model_id,
                    session_id=session_id,
                    base_model=house.name,
                    lora=lora,
                    created_at=now,
                    last_request_at=now,
                    user_metadata=told.user_metadata,
                ),
            )
        model = house.model(who, model_id)
        if (known := model.requests.get(seq)) is not None:
            return known.request_id
        request = Request(request_id=f"{model_id}:{seq}", seq=seq, kind=kind, body=body)
        model.requests[seq] = request
        self._advance(model)
        return request.request_id

    async def waits(self, who: Who, model_id: str) -> Waiting | None:
        self.house.model(who, model_id)
        return None

    async def skip(self, who: Who, model_id: str, seq: int, reason: str) -> None:
        model = self.house.model(who, model_id)
        if seq not in model.requests:
            request = Request(request_id=f"{model_id}:{seq}", seq=seq, kind=Kind.SKIPPED)
            model.requests[seq] = request
            request.end(Failed(error=reason, category="user"))
            self._advance(model)

    def _advance(self, model: Model) -> None:
        if model.gap is not None:
            model.gap.cancel()
            model.gap = None
        while (request := model.requests.get(model.next_seq)) is not None:
            model.next_seq += 1
            if request.kind is not Kind.SKIPPED:
                self._carry_out(model, request)
        if any(seq > model.next_seq for seq in model.requests):
            loop = asyncio.get_running_loop()
            model.gap = loop.call_later(GAP_S, self._pass_over, model)

    def _pass_over(self, model: Model) -> None:
        seq = model.next_seq
        request = Request(request_id=f"{model.info.model_id}:{seq}", seq=seq, kind=Kind.SKIPPED)
        request.end(Failed(error="it never came", category="user"))
        model.requests[seq] = request
        self._advance(model)

    def _carry_out(self, model: Model, request: Request) -> None:
        try:
            told = self._with_loss(model, self.house.codec.read(request.kind, request.body))
            answer = Carrying(self.house, model).out(told)
            body = self.house.codec.write(request.kind, told, answer)
            request.end(Ready(kind=request.kind, body=body))
        except PlaitError as error:
            mine = error.http_status < 500
            request.end(Failed(error=str(error), category="user" if mine else "server"))

    def _with_loss(self, model: Model, told: work.Work) -> work.Work:
        if not isinstance(told, work.Batch) or not told.loss_id:
            return told
        kept = self.house.losses.get(told.loss_id)
        if kept is None or not told.loss_id.startswith(f"{model.info.session_id}:"):
            raise NotFound(f"there is no custom loss {told.loss_id!r} of this model")
        return replace(told, loss=kept[1])

    async def sample(self, who: Who, sampler_id: str, seq: int, work: SampleWork) -> str:
        return await self._samples.sample(who, sampler_id, seq, work)

    async def create_loss(self, who: Who, session_id: str, number: int, loss: CustomLoss) -> str:
        self.house.alive(who, session_id)
        made = names.loss_id(session_id, number)
        self.house.losses.setdefault(made, (who, loss))
        return made

    async def outcome(self, who: Who, request_id: str, *, wait_s: float) -> Outcome:
        if (kept := self.house.losses.get(request_id)) is not None:
            if kept[0].tenant_id != who.tenant_id:
                raise NotFound(f"there is no request {request_id}")
            made = work.LossMade(loss_id=request_id)
            kind = Kind.CUSTOM_LOSS
            return Ready(kind=kind, body=self.house.codec.write(kind, None, made))
        if (held := self.house.held.get(request_id)) is not None:
            return held
        request = self._find(who, request_id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(request.done.wait(), wait_s)
        return request.outcome

    def _find(self, who: Who, request_id: str) -> Request:
        owner, _, last = request_id.rpartition(":")
        if ":sample:" in request_id:
            sampler_id, _, seq = owner.rpartition(":")
            sampler = self.house.sampler(who, sampler_id)
            if last != self.house.boot:
                raise RequestLost("the server was started anew: ask again")
            found = sampler.requests.get(int(seq))
        else:
            found = self.house.model(who, owner).requests.get(int(last) if last.isdigit() else -1)
        if found is None:
            raise NotFound(f"there is no request {request_id}")
        return found

    async def cancel(self, who: Who, request_id: str) -> None:
        if self.house.held.pop(request_id, None) is not None:
            request = self._find(who, request_id)
            request.end(Failed(error="cancelled", category="user"))

    async def ended(
        self, who: Who, sampler_id: str, clone: int, cursor: int, *, wait_s: float
    ) -> tuple[Sequence[Ended], int]:
        return await self._samples.ended(who, sampler_id, clone, cursor, wait_s=wait_s)

    async def forget(self, who: Who, request_ids: Sequence[str]) -> None:
        return None
