"""The environment protocol: single-use, tokens in, tokens out, a reward, done.

A ``TaskSource`` hands out environments by index; index and split alone determine the problem, so a
resumed run sees the same data in the same order. Items of split ``eval`` never occur in ``train``.
An environment serves one sample and is thrown away.

What an environment raises (``EnvironmentFailure``) or exceeds (its deadline) is recorded as an
error of that sample; it is never a reward of 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from plait.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the environment answers to the policy's tokens.

    ``tokens`` are appended to the conversation and are never trained on. ``reward`` is given at the
    end (``done``) or left ``None``: not applicable, judged by the job's reward functions instead.
    """

    tokens: tuple[int, ...] = ()
    reward: float | None = None
    done: bool = True
    info: Mapping[str, Any] = field(default_factory=dict)


class Environment(Protocol):
    """One problem for one sample."""

    async def start(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        ...

    async def step(self, tokens: tuple[int, ...]) -> Turn:
        """Take what the policy sampled (stop token included) and answer."""
        ...

    def columns(self) -> Mapping[str, Any]:
        """What reward functions receive by keyword besides ``prompts`` and ``completions``."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings at which a turn ends, besides the model's end token."""
        ...


@runtime_checkable
class Closing(Protocol):
    """An environment that must be told when its sample has ended, however it ended (others may be
    waiting for it). Optional; ``close`` may be called more than once."""

    def close(self) -> None: ...


@runtime_checkable
class Observing(Protocol):
    """A source that can bound what its environments say: optional, for estimates of the cache."""

    max_observation_tokens: int
    """Most tokens that all answers to one sample add to its context."""


class TaskSource(Protocol):
    """All problems of one environment configuration."""

    name: str
    same_prompt: bool
    """True if every environment of an index starts with the same tokens (one prefill per group)."""
    max_turns: int

    def make(self, index: int, split: str) -> Environment:
        """A fresh environment for problem ``index`` of ``split`` (``train`` or ``eval``)."""
        ...

    async def aclose(self) -> None:
        """End tool processes and whatever else the source owns."""
        ...


class TaskFactory(Protocol):
    """How ``envs.registry`` makes a source: ``config`` is the job file's ``environment`` section
    without ``name``; unknown keys are refused with ``ConfigError``."""

    def __call__(
        self, config: Mapping[str, Any], tokenizer: Tokenizer, seed: int
    ) -> TaskSource: ...
