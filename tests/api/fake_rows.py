"""What a house in memory knows: requests, models, samplers, sessions."""

import asyncio
from dataclasses import dataclass, field

from plait.core.ids import RunId
from plait.service.ports import ModelInfo, Outcome, SessionInfo, Waiting, Who
from plait.service.work import Kind


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
