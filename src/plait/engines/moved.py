"""Moved: a sample in flight, on its way from one engine to another of the same base model.

Plain values, which pickle or JSON carries between processes. Nothing is said of the random numbers:
the next one is a function of the operation's seed, the sample's index and the number of tokens
drawn. Nor is anything said of stop strings: what they have seen is the tokens.
"""

import json
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from typing import Any

from plait.core.operations import Ranked, Sample, SamplingParams, StopReason
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
    kv: MovedKv | None = None


def same_model(a: ModelShape, b: ModelShape) -> bool:
    """Equal but for the name: a directory may be called otherwise elsewhere."""
    return asdict(a) | {"name": ""} == asdict(b) | {"name": ""}


def to_json(moved: Moved) -> str:
    """One line of JSON; floats come back bit for bit."""
    return json.dumps(asdict(moved), default=lambda content: b64encode(content).decode())


def from_json(text: str) -> Moved:
    """What ``to_json`` was given."""
    row = json.loads(text, object_hook=_with_tuples)
    op, kv = row.pop("op"), row.pop("kv")
    params = SamplingParams(**op.pop("params"))
    samples = []
    for sample in row.pop("samples"):
        reason = sample.pop("stop_reason")
        samples.append(MovedSample(stop_reason=reason and StopReason(reason), **sample))
    return Moved(
        op=Sample(params=params, **op),
        shape=ModelShape(**row.pop("shape")),
        samples=tuple(samples),
        kv=kv and MovedKv(content=b64decode(kv.pop("content")), **kv),
        **row,
    )


def _with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {key: _tuple(value) for key, value in row.items()}


def _tuple(value: Any) -> Any:
    return tuple(_tuple(v) for v in value) if isinstance(value, list) else value
