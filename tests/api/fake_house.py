"""A house in memory, over the scripted engines: enough of one for the door of the Tinker API.

Requests are carried out as soon as those before them have been, on the event loop. Nothing is
durable, nothing is scheduled; what a real house promises beyond that is tested over the real one.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plait.core.errors import (
    NotFound,
    PlaitError,
    RequestError,
    RequestLost,
    SessionEnded,
)
from plait.core.ids import OpId, RunId
from plait.core.operations import ForwardResult, Sample, SampleResult, StepResult
from plait.engines.scripted import ScriptedRollout, ScriptedTrain
from plait.models.shape import read_shape
from plait.service import paths, work
from plait.service.ports import (
    CLONE,
    CheckpointInfo,
    Ended,
    Failed,
    ModelInfo,
    ModelOffer,
    Outcome,
    Page,
    Ready,
    SessionInfo,
    Waiting,
    Who,
)
from plait.service.tinker_api.codec import TinkerCodec
from plait.service.work import Kind, SampleWork

GAP_S = 0.5
"""After so long a number that has not come is used up (the real house waits for a minute)."""


@dataclass(kw_only=True)
class Request:
    request_id: str
    seq: int
    kind: Kind
    body: bytes = b""
    outcome: Outcome = field(default_factory=Waiting)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, outcome: Outcome) -> None:
        if not self.done.is_set():
            self.outcome = outcome
            self.done.set()


@dataclass(kw_only=True)
class Model:
    who: Who
    info: ModelInfo
    requests: dict[int, Request] = field(default_factory=dict)
    next_seq: int = 0
    gap: asyncio.TimerHandle | None = None


@dataclass(kw_only=True)
class Sampler:
    who: Who
    sampler_id: str
    session_id: str
    base_model: str
    path: str | None
    run: RunId
    version: int | None
    requests: dict[int, Request] = field(default_factory=dict)
    order: list[Request] = field(default_factory=list)
    clones: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(kw_only=True)
class Session:
    who: Who
    info: SessionInfo


class FakeHouse:
    """All ports. ``holds`` a request id back for tests of waiting."""

    def __init__(self, directory: Path, model_dir: Path, name: str = "tiny") -> None:
        self.directory, self.model_dir, self.name = directory, model_dir, name
        self.codec = TinkerCodec()
        shape = replace(read_shape(model_dir), name=name)
        self.shape = shape
        self.train = ScriptedTrain(shape)
        self.rollout = ScriptedRollout(shape, 4096, 16, 4096, 256)
        self.models_by_id: dict[str, Model] = {}
        self.samplers: dict[str, Sampler] = {}
        self.sessions_by_id: dict[str, Session] = {}
        self.kept: dict[str, tuple[Who, CheckpointInfo]] = {}
        self.boot = "b1"
        self.flags_of: dict[str, Mapping[str, Any]] = {}
        self.held: dict[str, Waiting] = {}
        self.now = 1_700_000_000.0
        self.requests = Requests(self)
        self.clients = Clients(self)
        self.models = Models(self)

    def offers(self) -> Sequence[ModelOffer]:
        return [
            ModelOffer(
                name=self.name, max_context=self.shape.max_context, model_dir=str(self.model_dir)
            )
        ]

    def wall(self) -> float:
        self.now += 1.0
        return self.now

    def model(self, who: Who, model_id: str) -> Model:
        model = self.models_by_id.get(model_id)
        if model is None or model.who.tenant_id != who.tenant_id:
            raise NotFound(f"there is no model {model_id}")
        return model

    def session(self, who: Who, session_id: str) -> Session:
        session = self.sessions_by_id.get(session_id)
        if session is None or session.who.tenant_id != who.tenant_id:
            raise NotFound(f"there is no session {session_id}")
        return session

    def alive(self, who: Who, session_id: str) -> Session:
        session = self.session(who, session_id)
        if session.info.ended:
            raise SessionEnded(f"session {session_id} is finished: open a new one")
        return session

    def sampler(self, who: Who, sampler_id: str) -> Sampler:
        sampler = self.samplers.get(sampler_id)
        if sampler is None or sampler.who.tenant_id != who.tenant_id:
            raise NotFound(f"there is no sampler {sampler_id}")
        return sampler

    def add_sampler(self, who: Who, session_id: str, seq: int, **of: Any) -> str:
        sampler_id = f"{session_id}:sample:{seq}"
        if sampler_id not in self.samplers:
            self.samplers[sampler_id] = Sampler(
                who=who, sampler_id=sampler_id, session_id=session_id, **of
            )
        return sampler_id

    def folder(self, path: str) -> Path:
        return self.directory / path.removeprefix("tinker://").replace(":", ".")

    def checkpoint(self, who: Who, path: str) -> CheckpointInfo:
        owner, info = self.kept.get(path, (None, None))
        if owner is None or info is None or not (info.public or owner.tenant_id == who.tenant_id):
            raise NotFound(f"there is no checkpoint {path}")
        return info


class Requests:
    def __init__(self, house: FakeHouse) -> None:
        self.house = house

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
            told = self.house.codec.read(request.kind, request.body)
            answer = Carrying(self.house, model).out(told)
            body = self.house.codec.write(request.kind, told, answer)
            request.end(Ready(kind=request.kind, body=body))
        except PlaitError as error:
            user = isinstance(error, RequestError | NotFound)
            request.end(Failed(error=str(error), category="user" if user else "server"))

    async def sample(self, who: Who, sampler_id: str, seq: int, work: SampleWork) -> str:
        sampler = self.house.sampler(who, sampler_id)
        self.house.alive(who, sampler.session_id)
        if (known := sampler.requests.get(seq)) is not None:
            return known.request_id
        request_id = f"{sampler_id}:{seq}:{self.house.boot}"
        request = Request(request_id=request_id, seq=seq, kind=Kind.SAMPLE)
        sampler.requests[seq] = request
        if request_id not in self.house.held:
            self.draw(sampler, request, work)
        return request_id

    def draw(self, sampler: Sampler, request: Request, work: SampleWork) -> None:
        house = self.house
        topk = max(work.topk_prompt, work.topk_sample)
        try:
            op = Sample(
                op_id=OpId(request.request_id),
                run_id=sampler.run,
                version=sampler.version,
                prompt=work.prompt,
                n=work.n,
                params=work.params,
                prompt_logprobs=work.prompt_logprobs or work.topk_prompt > 0,
                topk_logprobs=topk,
            )
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

    async def outcome(self, who: Who, request_id: str, *, wait_s: float) -> Outcome:
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

    async def forget(self, who: Who, request_ids: Sequence[str]) -> None:
        return None


@dataclass(kw_only=False)
class Carrying:
    """One model's work at the engines."""

    house: FakeHouse
    model: Model

    @property
    def run(self) -> RunId:
        return RunId(self.model.info.model_id.replace(":", "."))

    def out(self, told: work.Work) -> work.Answer:
        house, train = self.house, self.house.train
        match told:
            case work.CreateModel():
                if told.base_model not in (house.name, str(house.model_dir)):
                    raise RequestError(f"base model {told.base_model} is not served")
                train.create(self.run, told.lora)
                return work.Created(model_id=self.model.info.model_id)
            case work.LoadModel():
                house.checkpoint(self.model.who, told.path)
                train.load(self.run, str(house.folder(told.path)), optimizer=told.optimizer)
                return work.Created(model_id=self.model.info.model_id, path=told.path)
            case work.LoadCheckpoint():
                house.checkpoint(self.model.who, told.path)
                train.load(self.run, str(house.folder(told.path)), optimizer=told.optimizer)
                return work.Loaded(path=told.path)
            case work.Batch():
                passing = train.forward(self.run, told.data, adapter=True)
                if told.train:
                    config = dict(told.config)
                    passing = train.forward_backward(self.run, told.data, told.loss, config)
                return self._drain(passing)
            case work.Step():
                result: StepResult = train.optim_step(self.run, told.adam)
                return result
            case work.SaveCheckpoint():
                return self._save(told)
            case work.Snapshot():
                folder = house.directory / f"snapshot-{len(house.samplers)}"
                folder.mkdir()
                train.save(self.run, str(folder), optimizer=False)
                sampler_id = house.add_sampler(
                    self.model.who,
                    self.model.info.session_id,
                    told.sampler_seq,
                    base_model=house.name,
                    path=None,
                    run=RunId(f"~{folder.name}"),
                    version=0,
                )
                house.rollout.load_adapter(RunId(f"~{folder.name}"), 0, str(folder))
                return work.SamplerMade(sampler_id=sampler_id)

    def _drain(self, passing: Any) -> ForwardResult:
        while True:
            try:
                next(passing)
            except StopIteration as end:
                result: ForwardResult = end.value
                return result

    def _save(self, told: work.SaveCheckpoint) -> work.Saved:
        house, info = self.house, self.model.info
        path = str(paths.Path(model_id=info.model_id, kind=told.kind, name=told.name))
        folder = house.folder(path)
        if folder.exists():
            if not told.overwrite:
                raise RequestError(f"checkpoint {path} exists: take another name, or overwrite")
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        house.train.save(self.run, str(folder), optimizer=told.optimizer)
        size = sum(file.stat().st_size for file in folder.iterdir())
        now = house.wall()
        house.kept[path] = (
            self.model.who,
            CheckpointInfo(
                model_id=info.model_id,
                kind=told.kind,
                name=told.name,
                base_model=info.base_model,
                lora=info.lora,
                created_at=now,
                size_bytes=size,
                has_optimizer=told.optimizer,
                user_metadata=told.user_metadata,
                expires_at=None if told.ttl_s is None else now + told.ttl_s,
            ),
        )
        return work.Saved(path=path, size_bytes=size)


class Clients:
    def __init__(self, house: FakeHouse) -> None:
        self.house = house

    async def open_session(self, who: Who, told: Mapping[str, Any]) -> str:
        session_id = f"s-{len(self.house.sessions_by_id):04x}"
        self.house.sessions_by_id[session_id] = Session(
            who=who,
            info=SessionInfo(
                session_id=session_id,
                created_at=self.house.wall(),
                model_ids=(),
                sampler_ids=(),
                user_metadata=told.get("user_metadata", {}),
                display_name=told.get("display_name", ""),
            ),
        )
        return session_id

    async def heartbeat(self, who: Who, session_id: str) -> None:
        self.house.alive(who, session_id)

    async def finish(self, who: Who, session_id: str, reason: str, detail: str) -> None:
        session = self.house.session(who, session_id)
        session.info = replace(session.info, ended=session.info.ended or reason)

    async def open_sampler(
        self, who: Who, session_id: str, seq: int, *, base_model: str | None, path: str | None
    ) -> str:
        house = self.house
        house.alive(who, session_id)
        version, run = None, RunId("~base")
        if path is not None:
            house.checkpoint(who, path)
            version, run = 0, RunId(f"~{session_id}.{seq}")
            house.rollout.load_adapter(run, 0, str(house.folder(path)))
        elif base_model not in (house.name, str(house.model_dir)):
            raise NotFound(f"base model {base_model} is not served")
        return house.add_sampler(
            who, session_id, seq, base_model=house.name, path=path, run=run, version=version
        )

    async def sampler(self, who: Who, sampler_id: str) -> Mapping[str, Any]:
        sampler = self.house.sampler(who, sampler_id)
        return {
            "sampler_id": sampler_id,
            "base_model": sampler.base_model,
            "model_path": sampler.path,
        }

    async def join(self, who: Who, sampler_id: str) -> int:
        sampler = self.house.sampler(who, sampler_id)
        sampler.clones += 1
        return sampler.clones

    async def session(self, who: Who, session_id: str) -> SessionInfo:
        info = self.house.session(who, session_id).info
        return replace(
            info,
            model_ids=[m for m in self.house.models_by_id if m.startswith(f"{session_id}:")],
            sampler_ids=[s for s in self.house.samplers if s.startswith(f"{session_id}:")],
        )

    async def sessions(self, who: Who, *, limit: int, offset: int) -> Page[SessionInfo]:
        own = [
            s.info
            for s in reversed(self.house.sessions_by_id.values())
            if s.who.tenant_id == who.tenant_id
        ]
        return Page(items=own[offset : offset + limit], total=len(own))

    async def flags(self, who: Who) -> Mapping[str, Any]:
        return self.house.flags_of.get(who.tenant_id, {})


class Models:
    def __init__(self, house: FakeHouse) -> None:
        self.house = house

    async def model(self, who: Who, model_id: str) -> ModelInfo:
        return self.house.model(who, model_id).info

    async def models(self, who: Who, *, limit: int, offset: int) -> Page[ModelInfo]:
        own = [
            m.info
            for m in reversed(self.house.models_by_id.values())
            if m.who.tenant_id == who.tenant_id
        ]
        return Page(items=own[offset : offset + limit], total=len(own))

    async def checkpoint(self, who: Who, path: str) -> CheckpointInfo:
        return self.house.checkpoint(who, path)

    async def checkpoints(
        self, who: Who, *, model_id: str | None, limit: int | None, offset: int
    ) -> Page[CheckpointInfo]:
        own = [
            info
            for owner, info in reversed(self.house.kept.values())
            if owner.tenant_id == who.tenant_id and model_id in (None, info.model_id)
        ]
        end = None if limit is None else offset + limit
        return Page(items=own[offset:end], total=len(own))

    def _change(self, who: Who, path: str, **changes: Any) -> None:
        owner, info = self.house.kept.get(path, (None, None))
        if owner is None or info is None or owner.tenant_id != who.tenant_id:
            raise NotFound(f"there is no checkpoint {path}")
        self.house.kept[path] = (owner, replace(info, **changes))

    async def publish(self, who: Who, path: str, *, public: bool) -> None:
        self._change(who, path, public=public)

    async def pin(self, who: Who, path: str, *, pinned: bool) -> None:
        self._change(who, path, pinned=pinned)

    async def expire(self, who: Who, path: str, *, ttl_s: float | None) -> None:
        self._change(who, path, expires_at=None if ttl_s is None else self.house.now + ttl_s)

    async def delete(self, who: Who, path: str) -> None:
        if self.house.checkpoint(who, path).pinned:
            raise RequestError(f"{path} is pinned: unpin it first")
        self._change(who, path)
        del self.house.kept[path]
        shutil.rmtree(self.house.folder(path))

    async def copy(
        self,
        who: Who,
        path: str,
        *,
        ttl_s: float | None,
        session_id: str | None,
        model_seq: int | None,
    ) -> str:
        info = self.house.checkpoint(who, path)
        model_id = f"{session_id or 's-copy'}:train:{model_seq or 0}"
        made = replace(info, model_id=model_id, public=False, expires_at=None)
        target = str(paths.Path(model_id=model_id, kind=info.kind, name=info.name))
        shutil.copytree(self.house.folder(path), self.house.folder(target))
        self.house.kept[target] = (who, made)
        return target

    async def files(self, who: Who, path: str) -> Path:
        self.house.checkpoint(who, path)
        return self.house.folder(path)
