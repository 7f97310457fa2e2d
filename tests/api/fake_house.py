"""A house in memory, over the scripted engines: enough of one for the door of the Tinker API.

Requests are carried out as soon as those before them have been, on the event loop. Nothing is
durable, nothing is scheduled; what a real house promises beyond that is tested over the real one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_clients import Clients
from fake_models import Models
from fake_requests import Requests
from fake_rows import Model, Sampler, Session

from plait.core.custom_losses import CustomLoss
from plait.core.errors import NotFound, SessionEnded
from plait.engines.scripted import ScriptedRollout, ScriptedTrain
from plait.models.shape import read_shape
from plait.service.ports import CheckpointInfo, ModelOffer, Waiting, Who
from plait.service.tinker_api.codec import TinkerCodec


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
        self.losses: dict[str, tuple[Who, CustomLoss]] = {}
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
