"""Bodies: the JSON that clients send, as pydantic models. Keys that are not known are let by.

A client is newer than its server sooner or later, and sends what it has not heard of; what would
change a result is refused by name where it is read. Numbers are finite, ids reasonably short. Of a
list the first element that is wrong is told: to tell of a hundred thousand takes a second.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from plait.core.errors import RequestError

Id = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=10_000)]
Seq = Annotated[int, Field(ge=1, lt=2**31)]
"""A number of a model's requests, which is 32 bits wide in protobuf; 0 is its creation."""
Count = Annotated[int, Field(ge=0, lt=2**31)]
Labels = dict[Text, Any]
MAX_CHUNKS = 10_000
"""Of a prompt: a client makes one for each text."""
MAX_DIMENSIONS = 16
"""Of a tensor: what has more than two is refused in its own words."""
MAX_TTL_S = 10 * 366 * 86400.0
"""Ten years, as the official service has it."""
Ttl = Annotated[float, Field(gt=0, le=MAX_TTL_S)] | None


class Body(BaseModel):
    """What all of them share."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, protected_namespaces=())


class Nothing(Body):
    """A body of which nothing is read."""


class CreateSession(Body):
    tags: Annotated[list[Text], Field(fail_fast=True)] = []
    user_metadata: Labels | None = None
    sdk_version: Text = ""
    project_id: Text | None = None
    display_name: Text | None = None


class Session(Body):
    session_id: Id


Finished = Literal["success", "errored", "interrupted"]
FINISHED = ("success", "errored", "interrupted")
"""Reasons for which a client ends its session."""


class FinishReason(Body):
    type: Finished


class FinishSession(Body):
    reason: FinishReason
    detail: Text | None = None


class LoraConfig(Body):
    rank: int = 32
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(Body):
    type: Text = "adamw"


class CreateModel(Body):
    session_id: Id
    model_seq_id: Count
    base_model: Text
    user_metadata: Labels | None = None
    lora_config: LoraConfig = LoraConfig()
    optimizer_config: OptimizerConfig = OptimizerConfig()


class Model(Body):
    model_id: Id


class Numbered(Model):
    """What every request in a model's line says."""

    seq_id: Seq


class Pass(Numbered):
    """A pass over data as clients before 0.25 may write it, in JSON."""

    forward_backward_input: dict[str, Any] | None = None
    forward_input: dict[str, Any] | None = None


class Adam(Body):
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimStep(Numbered):
    adam_params: Adam | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(Numbered):
    path: Text | None = None
    ttl_seconds: Ttl = None
    overwrite: bool = False
    user_metadata: Labels | None = None


class SaveForSampler(Numbered):
    path: Text | None = None
    sampling_session_seq_id: Count | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: Ttl = None
    user_metadata: Labels | None = None


class SaveExternal(Numbered):
    path: Text
    ttl_seconds: Ttl = None
    age_encryption_recipients: Annotated[list[Text], Field(fail_fast=True)] | None = None


class LoadWeights(Body):
    """Into a model that exists (``model_id``, ``seq_id``), or as a new one."""

    path: Text
    optimizer: bool
    model_id: Id | None = None
    seq_id: Seq | None = None
    session_id: Id | None = None
    model_seq_id: Count | None = None
    base_model: Text | None = None
    user_metadata: Labels | None = None
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: Text | None = None


class CustomLossInput(Body):
    name: Text
    rank: int


class CustomLossGraph(Body):
    format: int
    nodes: Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class CreateCustomLoss(Body):
    """What it says of the loss is ``core.custom_graphs``' to check."""

    session_id: Id
    custom_loss_seq_id: Count
    name: Text
    inputs: Annotated[list[CustomLossInput], Field(fail_fast=True)]
    graph: CustomLossGraph


class OpenSampler(Body):
    session_id: Id
    sampling_session_seq_id: Count
    base_model: Text | None = None
    model_path: Text | None = None


class Sampler(Body):
    sampling_session_id: Id


class Chunk(Body):
    type: Text = "encoded_text"
    tokens: Annotated[list[int], Field(fail_fast=True)] = []


class Prompt(Body):
    chunks: Annotated[list[Chunk], Field(fail_fast=True, max_length=MAX_CHUNKS)]


class SamplingParamsBody(Body):
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | Annotated[list[int | str], Field(fail_fast=True)] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class Ids(Body):
    """A matrix of token ids, dense or sparse; -1 is none."""

    data: Annotated[list[Annotated[int, Field(ge=-1, lt=2**31)]], Field(fail_fast=True)]
    dtype: Text
    shape: Annotated[list[Count], Field(fail_fast=True, max_length=MAX_DIMENSIONS)] = []
    sparse_crow_indices: Annotated[list[Count], Field(fail_fast=True)] | None = None
    sparse_col_indices: Annotated[list[Count], Field(fail_fast=True)] | None = None


class SampleBody(Body):
    sampling_session_id: Id
    seq_id: Annotated[int, Field(ge=0, lt=2**63)]
    prompt: Prompt
    num_samples: Annotated[int, Field(ge=1, le=4096)] = 1
    sampling_params: SamplingParamsBody
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Ids | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None


class Future(Body):
    request_id: Id
    allow_metadata_only: bool = False


class FuturesTarget(Body):
    sampling_session_id: Id
    cloned_sampler_id: Annotated[int, Field(ge=0, lt=2**31)] = 0


class Futures(Body):
    target: FuturesTarget
    prev_cursor: Annotated[int, Field(ge=0, lt=2**63)] = 0
    timeout: float | None = None
    retrieved_request_ids: Annotated[list[Id], Field(fail_fast=True)] = []


class CopyWeights(Body):
    source_path: Text
    session_id: Id | None = None
    model_seq_id: Count | None = None
    destination_project_id: Text | None = None
    ttl_seconds: Ttl = None
    weights_access_token: Text | None = None


class WeightsPath(Body):
    tinker_path: Text


class TtlBody(Body):
    ttl_seconds: Ttl = None


class SessionStatus(Body):
    type: Text
    reasons: Annotated[list[Text], Field(fail_fast=True)] | None = None


class SearchCursor(Body):
    last_created_at: AwareDatetime
    last_session_id: Text


class SearchSessions(Body):
    session_id: Id | None = None
    user_metadata: dict[str, str] = {}
    display_name: Text | None = None
    statuses: list[SessionStatus] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: SearchCursor | None = None


class Telemetry(Body):
    events: Annotated[list[dict[str, Any]], Field(fail_fast=True)] = []
    session_id: Text = ""


B = TypeVar("B", bound=Body)


def read(kind: type[B], raw: bytes) -> B:
    """A body; RequestError says in one line what is wrong with it."""
    try:
        return kind.model_validate(from_json(raw, allow_inf_nan=False))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise RequestError(f"{where}: {first['msg']}") from None
    except ValueError as error:
        raise RequestError(f"the body is no JSON ({error})") from None


def any_object(raw: bytes) -> dict[str, Any]:
    """A JSON object of no certain shape."""
    try:
        told = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the body is no JSON ({error})") from None
    if not isinstance(told, dict):
        raise RequestError("the body is no JSON object")
    return told


class _Address(Body):
    model_id: Id
    seq_id: Seq


def address(raw: bytes) -> tuple[str, int] | None:
    """The model and number of a request that could not be read as a whole, if those can be."""
    try:
        at = _Address.model_validate(from_json(raw, allow_inf_nan=True))
    except (ValidationError, ValueError):
        return None
    return at.model_id, at.seq_id
