"""Moved: a sample in flight, on its way from one engine to another of the same base model.

Plain values, which pickle carries between processes. Nothing is said of the random numbers:
the next one is a function of the operation's seed, the sample's index and the number of tokens
drawn. Nor is anything said of stop strings: what they have seen is the tokens.
"""

from dataclasses import dataclass, replace

from plait.core.errors import ModelError, RequestError
from plait.core.operations import Alternatives, Ranked, Sample, StopReason
from plait.engines.protocol import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedSample:
    """One continuation so far; ``stop_reason`` is ``None`` while it goes on."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    topk: tuple[Ranked, ...]
    stop_reason: StopReason | None
    blocks: tuple[int, ...] = ()
    """Places in ``MovedKv`` of its keys and values, in order; none: they are computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedKv:
    """Contents of cache blocks; those that several samples share are there once."""

    n_blocks: int
    block_size: int
    dtype: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A ``Sample`` operation with all of its samples, those that have ended included."""

    op: Sample
    shape: ModelShape
    samples: tuple[MovedSample, ...]
    prompt_logprobs: tuple[float, ...] = ()
    prompt_topk: tuple[Ranked, ...] = ()
    prompt_targets: tuple[tuple[float, ...], ...] = ()
    prompt_draws: tuple[Alternatives, ...] = ()
    n_scored: int = 0
    """Tokens of the prompt of which what follows them has been said, as far as it is asked for."""
    kv: MovedKv | None = None


def check(moved: Moved, shape: ModelShape) -> None:
    """ModelError or RequestError if ``moved`` cannot go on with a model of this shape."""
    # Equal but for the name: a directory may be called otherwise elsewhere.
    if replace(moved.shape, name="") != replace(shape, name=""):
        raise ModelError(
            f"sample {moved.op.op_id} was begun on {moved.shape.name}, which has another shape "
            f"than {shape.name}: move it to a worker of the same base model"
        )
    if len(moved.samples) != moved.op.n:
        raise RequestError(
            f"sample {moved.op.op_id} asks for {moved.op.n} and {len(moved.samples)} were moved: "
            f"move a request as it was exported"
        )
