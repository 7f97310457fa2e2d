"""Ports: what the doors ask of the house, as protocols. ``house`` implements them over the runtime;
tests of a door may do so over something simpler.

Ids on the wire are those of the Tinker API: session ``S``, model ``S:train:N``, sampler
``S:sample:N``. A foreign id is an unknown id: NotFound either way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar

from plait.core.custom_losses import CustomLoss
from plait.core.ids import TenantId
from plait.core.runs import LoraSpec
from plait.service.work import CheckpointKind, Codec, Kind, SampleWork

if TYPE_CHECKING:
    from plait.jobs.launch import Launch
    from plait.service.access import Access
    from plait.service.sample_lane import SampleLane
    from plait.store.store import Store

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", covariant=True)
QueueState = Literal["active", "paused_capacity", "paused_rate_limit"]
Category = Literal["user", "server", "unknown"]


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
    position: int = 0
    """Place in the queue, from 1; 0 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Ended in an error: final. ``category`` says whose it is."""

    error: str
    category: Category


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A sample that ended: what ``Requests.ended`` reports."""

    request_id: str
    failed: bool
    n_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model (a run that a client made). Times are seconds since the epoch."""

    model_id: str
    session_id: str
    base_model: str
    lora: LoraSpec
    created_at: float
    last_request_at: float
    user_metadata: Mapping[str, Any]
    corrupted: bool = False
    """It ended in a failure of ours: nothing more can be trained on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A checkpoint that exists."""

    model_id: str
    kind: CheckpointKind
    name: str
    base_model: str
    lora: LoraSpec
    created_at: float
    size_bytes: int
    has_optimizer: bool
    user_metadata: Mapping[str, Any]
    public: bool = False
    expires_at: float | None = None
    pinned: bool = False
    """It does not expire, and is neither deleted nor overwritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A client session. ``ended`` is the reason it was finished for, empty while it lives."""

    session_id: str
    created_at: float
    model_ids: Sequence[str]
    sampler_ids: Sequence[str]
    user_metadata: Mapping[str, Any]
    display_name: str = ""
    project_id: str = ""
    ended: str = ""
    n_checkpoints: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Some of a list, newest first, and how many there are in all."""

    items: Sequence[T]
    total: int


class Requests(Protocol):
    """Numbered requests of models (durable), those of samplers (re-executable), and what became
    of them."""

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

    async def create_loss(self, who: Who, session_id: str, number: int, loss: CustomLoss) -> str:
        """Keep a loss of a session; the id of the request, which is done, and of the loss.
        ``(session_id, number)`` is the idempotency key."""

    async def outcome(self, who: Who, request_id: str, *, wait_s: float) -> Outcome:
        """What became of a request, waiting up to ``wait_s`` for it to end. NotFound; RequestLost
        for a sample of an earlier life of the server."""

    async def waits(self, who: Who, model_id: str) -> Waiting | None:
        """What a model's numbered requests wait for, also if it could not be made yet; None if none
        is open, or there is no such model. NotFound of another tenant's."""

    async def cancel(self, who: Who, request_id: str) -> None:
        """Stop a sample. A request that has ended, or is none, is left alone."""

    async def ended(
        self, who: Who, sampler_id: str, clone: int, cursor: int, *, wait_s: float
    ) -> tuple[Sequence[Ended], int]:
        """Samples of a sampler (those with ``seq // CLONE == clone``) that ended after ``cursor``,
        and the cursor behind them; waits up to ``wait_s`` for the first."""

    async def forget(self, who: Who, request_ids: Sequence[str]) -> None:
        """The answers of these samples have been read: they may be let go. Unknown ones are
        left alone."""


CLONE = 1_000_000_000
"""A copy of a sampling client numbers its requests from its own multiple of this."""


class Clients(Protocol):
    """Client sessions and their samplers."""

    async def open_session(self, who: Who, told: Mapping[str, Any]) -> str:
        """A new session's id. ``told``: tags, user_metadata, sdk_version, project_id and
        display_name."""

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

    async def join(self, who: Who, sampler_id: str) -> int:
        """A number for a new copy of a sampling client, from 1, never given twice."""

    async def session(self, who: Who, session_id: str) -> SessionInfo:
        """One session."""

    async def sessions(self, who: Who, *, limit: int, offset: int) -> Page[SessionInfo]:
        """The tenant's sessions."""

    async def flags(self, who: Who) -> Mapping[str, Any]:
        """What this tenant's clients are told other than everybody's (``client/config``)."""


class Models(Protocol):
    """What is known of models and their checkpoints.

    ``path`` is ``tinker://{model_id}/{weights|sampler_weights|external_weights}/{name}``. Another
    tenant's is NotFound, unless it is public and only read.
    """

    async def model(self, who: Who, model_id: str) -> ModelInfo:
        """One model."""

    async def models(self, who: Who, *, limit: int, offset: int) -> Page[ModelInfo]:
        """The tenant's models."""

    async def checkpoint(self, who: Who, path: str) -> CheckpointInfo:
        """One checkpoint."""

    async def checkpoints(
        self, who: Who, *, model_id: str | None, limit: int | None, offset: int
    ) -> Page[CheckpointInfo]:
        """A model's checkpoints, or all of the tenant's."""

    async def publish(self, who: Who, path: str, *, public: bool) -> None:
        """Let everybody on this server read a checkpoint, or not."""

    async def pin(self, who: Who, path: str, *, pinned: bool) -> None:
        """Let nothing remove a checkpoint, or let it go its way again: one whose time is over by
        then expires at once."""

    async def expire(self, who: Who, path: str, *, ttl_s: float | None) -> None:
        """Delete a checkpoint so long from now; never if None."""

    async def delete(self, who: Who, path: str) -> None:
        """Delete a checkpoint; samplers that were made from it go on. RequestError if it is
        pinned."""

    async def copy(
        self,
        who: Who,
        path: str,
        *,
        ttl_s: float | None,
        session_id: str | None,
        model_seq: int | None,
    ) -> str:
        """A copy of a checkpoint under a model of the caller's own (that of the session and number,
        or a new one); its path."""

    async def files(self, who: Who, path: str) -> Path:
        """The directory that a checkpoint lies in."""


class Calls(Protocol):
    """The store's thread."""

    async def write(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer of a repository's method, durable before it is here."""

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same of any function, by itself."""


class House(Protocol):
    """Everything behind the doors."""

    @property
    def codec(self) -> Codec: ...

    @property
    def requests(self) -> Requests: ...

    @property
    def clients(self) -> Clients: ...

    @property
    def models(self) -> Models: ...

    @property
    def access(self) -> "Access": ...

    @property
    def store(self) -> "Store": ...

    @property
    def writer(self) -> "Calls": ...

    @property
    def directory(self) -> Path:
        """Everything of this house lies under it."""

    def offers(self) -> Sequence[ModelOffer]:
        """Base models served."""

    async def launch(self, base_model: str) -> "Launch":
        """The launch of a base model, started on first use; NotFound if it is not served."""

    async def lane(self, base_model: str) -> "SampleLane":
        """The lane of its outside samples; NotFound if it is not served."""

    def launched(self, base_model: str) -> "Launch | None":
        """Its launch if that runs."""

    def place(self, base_model: str) -> Path:
        """The directory of its launch, whether that runs or not."""
