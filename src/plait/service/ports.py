"""Ports: what the doors ask of the house, as protocols. ``house`` implements them over the runtime;
tests of a door may do so over something simpler.

Ids on the wire are those of the Tinker API: session ``S``, model ``S:train:N``, sampler
``S:sample:N``. A foreign id is an unknown id: NotFound either way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from plait.core.ids import TenantId
from plait.service.work import Codec, Kind, SampleWork

QueueState = Literal["active", "paused_capacity", "paused_rate_limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """An authenticated caller."""

    tenant_id: TenantId
    key_id: str = ""
    admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Not done yet, and why."""

    state: QueueState = "active"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Ended in an error: final. ``category`` says whose it is."""

    error: str
    category: Literal["user", "server", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Ended well: the body that the codec wrote."""

    kind: Kind
    body: bytes


Outcome = Waiting | Failed | Ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOffer:
    """A base model that this server serves."""

    name: str
    max_context: int
    model_dir: str
    """Where its tokenizer can be read from, on this machine."""


class Requests(Protocol):
    """Numbered requests of models (durable) and samplers (re-executable), and what became of them."""

    async def submit(
        self, who: Who, session_id: str, model_id: str, seq: int, kind: Kind, body: bytes
    ) -> str:
        """Make a request durable and queue it behind those with smaller numbers; its id.

        ``(model_id, seq)`` is the idempotency key: asked again, the original's id. What is wrong
        with the work itself is not found here but fails the request, which uses up its number.
        ``CREATE_MODEL`` and ``LOAD_MODEL`` have number 0.
        """

    async def skip(self, who: Who, model_id: str, seq: int, reason: str) -> None:
        """Use up the number of a request that was refused before it could be read."""

    async def sample(self, who: Who, sampler_id: str, seq: int, work: SampleWork) -> str:
        """Queue a sample; its id. ``(sampler_id, seq)`` is the idempotency key."""

    async def outcome(self, who: Who, request_id: str, *, wait_s: float) -> Outcome:
        """What became of a request, waiting up to ``wait_s`` for it to end. NotFound; RequestLost
        for a sample of an earlier life of the server."""

    async def cancel(self, who: Who, request_id: str) -> None:
        """Stop a sample. A request that has ended, or is none, is left alone."""


class Clients(Protocol):
    """Client sessions and their samplers."""

    async def open_session(self, who: Who, told: Mapping[str, Any]) -> str:
        """A new session's id. ``told``: tags, user_metadata, sdk_version, project_id, display_name."""

    async def heartbeat(self, who: Who, session_id: str) -> None:
        """It is alive; SessionEnded if it was finished."""

    async def finish(self, who: Who, session_id: str, reason: str, detail: str) -> None:
        """End a session: slots are freed, queued work is cancelled. The first reason stays."""

    async def open_sampler(
        self, who: Who, session_id: str, seq: int, *, base_model: str | None, path: str | None
    ) -> str:
        """A sampler of a base model or of a ``tinker://`` path; asked again, the same."""

    async def sampler(self, who: Who, sampler_id: str) -> Mapping[str, Any]:
        """``sampler_id``, ``base_model``, ``model_path`` of a sampler."""


class House(Protocol):
    """Everything behind the doors."""

    codec: Codec
    requests: Requests
    clients: Clients

    def offers(self) -> Sequence[ModelOffer]:
        """Base models served."""
