"""Work: what a client of the service asks of a model, once it has been read from the wire.

One value per kind of request, and one per kind of answer that ``core.operations`` does not have. A
door's codec reads them from bodies and writes answers; ``lines`` carries them out in order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from plait.core.custom_losses import Loss
from plait.core.operations import (
    AdamParams,
    Datum,
    ForwardResult,
    SampleResult,
    SamplingParams,
    StepResult,
)
from plait.core.runs import LoraSpec
from plait.service.targets import Targets


class Kind(StrEnum):
    """Kinds of requests; stored with each, so a name never changes."""

    CREATE_MODEL = "create_model"
    LOAD_MODEL = "load_model"
    """A new model from a checkpoint (create-via-load)."""
    FORWARD = "forward"
    FORWARD_BACKWARD = "forward_backward"
    OPTIM_STEP = "optim_step"
    SAVE_WEIGHTS = "save_weights"
    SAVE_SAMPLER = "save_weights_for_sampler"
    SAVE_EXTERNAL = "save_weights_external"
    LOAD_WEIGHTS = "load_weights"
    SKIPPED = "skipped"
    """A number that was used up by a request that was refused or never came."""
    CUSTOM_LOSS = "create_custom_loss"
    """A session's, not a model's: in no line."""
    SAMPLE = "sample"
    """Re-executable, so never in the store."""


COMMITS = (Kind.OPTIM_STEP, Kind.LOAD_WEIGHTS)
"""What makes a version: with it, what came before is carried out for good."""


class CheckpointKind(StrEnum):
    """What a checkpoint can be used for."""

    TRAINING = "training"
    SAMPLER = "sampler"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateModel:
    """A new adapter on a base model."""

    base_model: str
    lora: LoraSpec
    user_metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadModel:
    """A new model that begins as a checkpoint: ``path`` is a ``tinker://`` path."""

    path: str
    optimizer: bool
    base_model: str | None = None
    user_metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Data for a forward pass, or for a gradient (``train``)."""

    data: tuple[Datum, ...]
    loss: Loss
    config: Mapping[str, float]
    train: bool
    loss_id: str = ""
    """Of a custom loss, which ``reading`` puts in the place of its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step."""

    adam: AdamParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Keep the model's state under ``name``."""

    name: str
    kind: CheckpointKind
    optimizer: bool = True
    overwrite: bool = False
    ttl_s: float | None = None
    user_metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Make the current version samplable under the sampler of this number of the session.

    ``inflight``: the sampler may follow newer versions.
    """

    sampler_seq: int
    inflight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCheckpoint:
    """Replace the model's state by a checkpoint's."""

    path: str
    optimizer: bool


Work = CreateModel | LoadModel | Batch | Step | SaveCheckpoint | Snapshot | LoadCheckpoint
"""What is durable before it is acknowledged, in a line of its model. (``Batch(train=False)`` rides
along: it has a number of its own, so the order needs it.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleWork:
    """Continuations of a prompt, and what else of it is to be scored."""

    prompt: tuple[int, ...]
    n: int
    params: SamplingParams
    prompt_logprobs: bool = False
    prompt_last: int | None = None
    """Show those of the prompt's last so many tokens only."""
    topk_prompt: int = 0
    topk_sample: int = 0
    targets: Targets | None = None
    """Tokens to be scored in place of the prompt's."""
    prompt_draws: int = 0
    """So many tokens to be drawn in place of each of the prompt's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A model was made (also by loading)."""

    model_id: str
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint lies under ``path``, a ``tinker://`` path."""

    path: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerMade:
    """An ephemeral sampler."""

    sampler_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checkpoint was loaded into a model."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMade:
    """A custom loss was checked and is kept."""

    loss_id: str


Answer = (
    ForwardResult | StepResult | SampleResult | Created | Saved | SamplerMade | Loaded | LossMade
)


class Codec(Protocol):
    """How a door writes work and answers. Pure; RequestError on what it cannot read."""

    def read(self, kind: Kind, body: bytes) -> Work:
        """Work from the stored body of a request."""

    def write(self, kind: Kind, work: Work | SampleWork | None, answer: Answer) -> bytes:
        """The body that answers it. Of a custom loss there is no work."""
