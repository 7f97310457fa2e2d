"""Carry: what each kind of work is, done by the run's client, which is the one path to the engines.

What makes a version commits with it ``progress``: the number of the request and what it answers.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path as Folder

from plait.core.errors import ModelError, PlaitError, RequestError, StoreError
from plait.core.operations import StepResult
from plait.core.runs import LoraSpec
from plait.jobs.launch import Launch
from plait.runtime.client import RunClient
from plait.service import keep
from plait.service.checkpoints import Checkpoints, Found
from plait.service.entry import Entry
from plait.service.hands import Down
from plait.service.limits import Limits
from plait.service.line import Line
from plait.service.residents import Known, Residents, is_down
from plait.service.sampling import Sampling
from plait.service.work import (
    Answer,
    Batch,
    Codec,
    Created,
    CreateModel,
    Kind,
    LoadCheckpoint,
    Loaded,
    LoadModel,
    SamplerMade,
    SaveCheckpoint,
    Snapshot,
    Step,
    Work,
)
from plait.store.rows import Json

log = logging.getLogger(__name__)


class Carrier:
    """``line.Hands`` of one model."""

    def __init__(
        self,
        line: Line,
        *,
        residents: Residents,
        checkpoints: Checkpoints,
        sampling: Sampling,
        codec: Codec,
        limits: Limits,
        wall: Callable[[], float],
    ) -> None:
        self._line, self._owner, self._limits = line, line.owner, limits
        self._counted = False
        self._spent_s = 0.0
        self._residents, self._checkpoints = residents, checkpoints
        self._sampling, self._codec, self._wall = sampling, codec, wall
        self._known: Known | None = None
        self._launch: Launch | None = None
        self._client: RunClient | None = None

    async def committed(self) -> tuple[int, Callable[[Work], bytes] | None]:
        """The last committed request's number, and what tells its answer again."""
        known = self._known = await self._residents.known(self._owner.model_id)
        if known is None or "request" not in known.progress:
            return -1, None
        result = known.progress["result"]
        return int(known.progress["request"]), lambda work: self._told_again(work, result)

    async def take_up(self) -> None:
        """The model at its last committed version, if it has one."""
        await self._admitted()
        if self._known is not None and "step" in self._known.progress and self._line.made:
            self._launch, self._client = await self._residents.take_up(self._known, anew=True)

    async def _admitted(self) -> None:
        """One more of the tenant's runs is alive. Down while it has too many."""
        if self._counted:
            return
        owner = self._owner
        if (hold := self._limits.take_run(owner.tenant_id, owner.model_id)) is not None:
            raise Down(hold.reason, position=hold.position)
        self._counted = True

    def held(self) -> str:
        """Why the tenant's work does not start now."""
        hold = self._limits.hold(self._owner.tenant_id)
        return "" if hold is None else hold.reason

    def _spend(self, work: Work) -> None:
        """Tell the limits what the tenant has used."""
        if self._client is None:
            return
        served_s = self._client.facts.served_s
        tokens = sum(len(d.input_tokens) for d in work.data) if isinstance(work, Batch) else 0
        self._limits.spend(
            self._owner.tenant_id, tokens=tokens, device_s=max(0.0, served_s - self._spent_s)
        )
        self._spent_s = served_s

    def _told_again(self, work: Work, result: Json) -> bytes:
        answer: Answer
        match work:
            case Step():
                answer = StepResult(version=result["version"], metrics=result["metrics"])
            case LoadModel():
                answer = Created(model_id=self._owner.model_id, path=work.path)
            case LoadCheckpoint():
                answer = Loaded(path=work.path)
            case _:
                raise RequestError(f"a {type(work).__name__} commits nothing")
        return self._codec.write(_KINDS[type(work)], work, answer)

    async def carry(self, entry: Entry, work: Work) -> bytes:
        """Carry out; the answer's body."""
        try:
            answer = await self._answer(entry, work)
        except PlaitError as error:
            if self._launch is not None and is_down(self._launch):
                raise Down(str(error)) from error
            raise
        finally:
            self._spend(work)
        return await asyncio.to_thread(self._codec.write, entry.kind, work, answer)

    async def _answer(self, entry: Entry, work: Work) -> Answer:
        match work:
            case CreateModel():
                await self._create(work)
                return Created(model_id=self._owner.model_id)
            case LoadModel():
                await self._create_from(entry, work)
                return Created(model_id=self._owner.model_id, path=work.path)
        if self._client is None or self._known is None:
            raise self._line.unmade()
        client = self._client
        match work:
            case Batch(train=True):
                return await client.forward_backward(work.data, work.loss, dict(work.config))
            case Batch():
                return await client.forward(work.data)
            case Step():
                done = await client.optim_step(work.adam, progress=self._progress(entry))
                await self._advanced(client)
                return done
            case SaveCheckpoint():
                return await self._checkpoints.save(
                    self._owner.model_id,
                    entry.seq,
                    work,
                    tenant_id=self._owner.tenant_id,
                    version=client.version,
                    version_dir=Folder(client.facts.path),
                )
            case Snapshot():
                sampler_id = await self._sampling.snapshot(
                    tenant_id=self._owner.tenant_id,
                    session_id=self._owner.session_id,
                    seq=work.sampler_seq,
                    model_id=self._owner.model_id,
                    version=client.version,
                    directory=Folder(client.facts.path),
                    inflight=work.inflight,
                )
                return SamplerMade(sampler_id=sampler_id)
            case LoadCheckpoint():
                found = await self._found(work.path, work.optimizer)
                self._fits(found, self._known)
                await self._load(client, found, work.optimizer, entry)
                await self._advanced(client)
                return Loaded(path=work.path)
        raise RequestError(f"a model does not do {type(work).__name__}")

    async def _create(self, work: CreateModel) -> None:
        known = self._known
        base_model = self._residents.launches.known(work.base_model)
        if known is None:
            known = Known(
                model_id=self._owner.model_id,
                tenant_id=self._owner.tenant_id,
                base_model=base_model,
                lora=work.lora,
                about={"user_metadata": dict(work.user_metadata)},
            )
        self._check_mine(known, base_model, work.lora)
        await self._make(known)

    async def _create_from(self, entry: Entry, work: LoadModel) -> None:
        found = await self._found(work.path, work.optimizer)
        source = found.source
        if work.base_model and self._residents.launches.known(work.base_model) != source.base_model:
            raise RequestError(
                f"{work.path} belongs to {source.base_model}, not to {work.base_model}"
            )
        if self._known is None:
            self._known = Known(
                model_id=self._owner.model_id,
                tenant_id=self._owner.tenant_id,
                base_model=source.base_model,
                lora=source.lora,
                about={"user_metadata": dict(work.user_metadata), "from": work.path},
            )
        self._check_mine(self._known, source.base_model, source.lora)
        client = await self._make(self._known)
        try:
            await self._load(client, found, work.optimizer, entry)
        except PlaitError as error:
            if self._launch is not None and not is_down(self._launch):
                await self._unmake(str(error))
            raise

    async def _load(self, client: RunClient, found: Found, optimizer: bool, entry: Entry) -> None:
        """RequestError, in words of its owner's, if the checkpoint was deleted while this waited
        for its turn, or cannot be read."""
        try:
            await client.load(found.folder, optimizer=optimizer, progress=self._progress(entry))
        except ModelError as error:
            await asyncio.to_thread(keep.check_there, found.folder, found.path)
            raise RequestError(str(error).replace(str(found.folder), str(found.path))) from error

    async def _unmake(self, reason: str) -> None:
        """There is no model after all: nobody may take the beginnings of it for one."""
        if self._launch is not None:
            self._residents.let_go(self._launch, self._owner.model_id)
        self._launch = self._client = self._known = None
        with contextlib.suppress(StoreError):  # its request tells the same
            await self._residents.unmade(self._owner.model_id, reason, self._wall())

    def _check_mine(self, known: Known, base_model: str, lora: LoraSpec) -> None:
        """RequestError if there was a model of this number, which is not what is asked for."""
        if known.tenant_id != self._owner.tenant_id or not known.is_like(base_model, lora):
            raise RequestError(f"there is a model {self._owner.model_id}: give another number")

    async def _make(self, known: Known) -> RunClient:
        self._launch, self._client = await self._residents.take_up(known)
        self._known = known
        return self._client

    async def _found(self, path: str, optimizer: bool) -> Found:
        found = await self._checkpoints.find(self._owner.tenant_id, path)
        if optimizer and not found.row.has_optimizer:
            raise RequestError(f"{path} was saved without its optimizer: load it without")
        return found

    def _fits(self, found: Found, known: Known) -> None:
        theirs = found.source
        if theirs.base_model != known.base_model:
            raise RequestError(f"{found.path} belongs to {theirs.base_model}: make a model of that")
        if not known.is_like(theirs.base_model, theirs.lora):
            raise RequestError(f"{found.path} is an adapter of another shape: make a model from it")

    async def _advanced(self, client: RunClient) -> None:
        """Samplers that follow the model do. The version is committed: what they lack, their next
        one brings."""
        try:
            await self._sampling.advanced(
                self._owner.model_id, client.version, Folder(client.facts.path)
            )
        except (PlaitError, OSError) as error:
            log.warning("samplers of %s stay behind: %s", self._owner.model_id, error)

    def _progress(self, entry: Entry) -> Callable[[StepResult], Awaitable[Json]]:
        async def progress(done: StepResult) -> Json:
            await self._line.settled(entry)
            steps = 0 if self._client is None else self._client.facts.step
            return {
                "step": steps + (entry.kind is Kind.OPTIM_STEP),
                "request": entry.seq,
                "result": {"version": done.version, "metrics": done.metrics},
            }

        return progress

    def idle(self) -> bool:
        """True if nothing is lost by letting the model go."""
        return self._client is None or not self._client.facts.uncommitted

    async def leave(self, *, ended: str) -> None:
        """Free what the model holds."""
        if self._client is not None:
            with contextlib.suppress(StoreError):  # the rest of its account is worth no wait
                await self._client.settle()
        if self._launch is not None:
            self._residents.let_go(self._launch, self._owner.model_id)
        self._launch = self._client = None
        self._spent_s = 0.0
        if self._counted:
            self._limits.give_run(self._owner.tenant_id)
            self._counted = False
        if ended and self._known is not None:
            await self._residents.ended(self._owner.model_id, ended, self._wall())

    def waits(self) -> str:
        """Why the model's work is not being done at the moment."""
        if self._client is None:
            return "its base model is being started, or its own weights are being loaded"
        wait = self._client.facts.wait
        return "" if wait is None else f"{wait.reason}: {wait.detail}"


_KINDS = {
    Step: Kind.OPTIM_STEP,
    LoadModel: Kind.LOAD_MODEL,
    LoadCheckpoint: Kind.LOAD_WEIGHTS,
}
