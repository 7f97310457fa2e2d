"""Schema: what the OpenAI API takes. Fields that plait does not serve are named here, so that who
asks for one is told, and a field of no known name is refused: a setting that does nothing is worse
than an error.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from plait.core.operations import MAX_TOPK

MAX_CHOICES = 128
"""Continuations of one prompt, and prompts of one request."""
MAX_STOPS = 16
INT64 = 2**63 - 1
INT32 = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=INT32)]
Stop = Annotated[str, Field(min_length=1, max_length=512)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Taken, and not needed here."""


class ResponseFormat(_Strict):
    type: Literal["text"]


class Sampling(_Strict):
    """What chat and plain completions have in common."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-INT64, le=INT64)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: Annotated[int, Field(ge=-1, le=INT32)] | None = None
    """Beyond OpenAI's: as vLLM has it, -1 and 0 are off."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False
    """Beyond OpenAI's, as vLLM has them: tokens in, tokens out, for who trains on what it gets."""

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @model_validator(mode="after")
    def _streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream only")
        return self


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class Message(_Strict):
    """One message of a conversation; content of text alone."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    refusal: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: None = None
    audio: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(Sampling):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1, le=INT32)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOPK)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None

    @model_validator(mode="after")
    def _needs_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs: true only")
        return self


class CompletionRequest(Sampling):
    """Body of ``POST /v1/completions``; a prompt is text or token ids."""

    prompt: (
        str
        | Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
        | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]
        | Annotated[
            list[Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]],
            Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
        ]
    )
    max_tokens: Annotated[int, Field(ge=0, le=INT32)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOPK)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[t for t in self.prompt if isinstance(t, int)]]
        return [p for p in self.prompt if not isinstance(p, int)]

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of other than n is not served: ask for n and choose")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens 0 goes with echo only")
        if self.echo and self.stream:
            raise ValueError("echo is not streamed: leave one of them out")
        return self


UNSERVED = {
    "tools": "tools are not served by this API: run a tool environment as a job",
    "functions": "functions are not served by this API: run a tool environment as a job",
    "tool_choice": "tools are not served by this API: run a tool environment as a job",
    "function_call": "functions are not served by this API: run a tool environment as a job",
    "tool_calls": "messages with tool calls are not served by this API",
    "presence_penalty": "penalties are not served: leave them out or at 0",
    "frequency_penalty": "penalties are not served: leave them out or at 0",
    "logit_bias": "logit_bias is not served: leave it out",
    "response_format": "only response_format text is served",
    "suffix": "suffix is not served: leave it out",
    "store": "nothing is stored: leave store out or false",
    "modalities": "only text is served",
}
"""Why a field's value was refused, where the type alone does not say it."""
