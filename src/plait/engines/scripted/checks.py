"""Checks: what the scripted engines refuse, before anything has changed."""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from math import isfinite
from typing import TypeVar

from plait.core.errors import CapacityError, RequestError
from plait.core.losses import INPUTS, Choice
from plait.core.operations import MAX_NAMED, MAX_TOPK, Datum, Sample
from plait.engines.protocol import ModelShape

T = TypeVar("T", bound=float)


def sample(op: Sample, shape: ModelShape) -> None:
    """RequestError on bad arguments; CapacityError on a prompt that fills the context."""
    params = op.params
    if not op.prompt:
        raise RequestError("the prompt is empty: give at least one token")
    ids(op.prompt, shape)
    if op.n < 1 or op.first_index < 0 or params.max_tokens < 1:
        raise RequestError("n and max_tokens start at 1, first_index at 0")
    if not (isfinite(params.temperature) and params.temperature >= 0):
        raise RequestError(f"temperature {params.temperature} is not ≥ 0: use 0 for greedy")
    if not 0 < params.top_p <= 1 or params.top_k < 0:
        raise RequestError("top_p lies in (0, 1] and top_k is ≥ 0; 1 and 0 turn them off")
    if not 0 <= op.topk_logprobs <= min(MAX_TOPK, shape.vocab_size):
        raise RequestError(f"topk_logprobs {op.topk_logprobs} is not in 0–{MAX_TOPK}")
    _alternatives(op, shape)
    if len(op.prompt) >= shape.max_context:
        raise CapacityError(
            f"the prompt has {len(op.prompt)} tokens and {shape.name} takes {shape.max_context} "
            "with the answer: shorten it"
        )


def _alternatives(op: Sample, shape: ModelShape) -> None:
    if not 0 <= op.prompt_draws <= MAX_TOPK:
        raise RequestError(f"prompt_draws {op.prompt_draws} is not in 0–{MAX_TOPK}")
    if not op.prompt_targets:
        return
    if len(op.prompt_targets) != len(op.prompt) - 1:
        raise RequestError(
            f"prompt_targets has {len(op.prompt_targets)} rows: give one for each token of the "
            f"prompt but the first, {len(op.prompt) - 1}"
        )
    named = tuple(chain.from_iterable(op.prompt_targets))
    if not 1 <= len(named) <= MAX_NAMED:
        raise RequestError(f"prompt_targets names {len(named)} tokens: give 1–{MAX_NAMED}")
    ids(named, shape)


def data(batch: Sequence[Datum], shape: ModelShape, loss: Choice | None = None) -> None:
    """RequestError unless every datum is well formed and has the inputs that the loss needs."""
    if not batch:
        raise RequestError("the batch is empty: give at least one datum")
    needed = () if loss is None else loss.needed
    expected = {*needed, *batch[0].inputs}
    for place, datum in enumerate(batch):
        n = len(datum.input_tokens)
        lengths = {
            "target_tokens": len(datum.target_tokens),
            "mask": len(datum.mask),
            **{name: len(values) for name, values in datum.inputs.items()},
        }
        wrong = {name: length for name, length in lengths.items() if length != n}
        if wrong or n == 0:
            raise RequestError(f"datum {place} has {n} input tokens, but {wrong or 'no position'}")
        if n > shape.max_context:
            raise CapacityError(
                f"datum {place} has {n} tokens and {shape.name} takes {shape.max_context}: "
                "shorten it"
            )
        _widths(place, datum, loss)
        _inputs(place, datum, expected)
        ids(datum.input_tokens, shape)
        ids((token for i in scored(datum) for token in targets(datum, i)), shape)


def _widths(place: int, datum: Datum, loss: Choice | None) -> None:
    """One target at every position, or as many at each."""
    k = _width(datum.target_tokens[0])
    if k and loss is not None and not (loss.soft and set(datum.inputs) == {"weights"}):
        raise RequestError(
            f"datum {place} has several targets per position: only cross_entropy takes them, with "
            "weights and no other input"
        )
    for name, values in (("target_tokens", datum.target_tokens), *datum.inputs.items()):
        if {_width(value) for value in values} != {k}:
            raise RequestError(f"datum {place}: {name} must have {k or 1} at every position")


def _inputs(place: int, datum: Datum, expected: set[str]) -> None:
    if unknown := [name for name in datum.inputs if name not in INPUTS]:
        raise RequestError(f"datum {place} has {unknown[0]!r}; known inputs: {', '.join(INPUTS)}")
    if set(datum.inputs) != expected:
        raise RequestError(
            f"datum {place} has the inputs {sorted(datum.inputs)}; it needs {sorted(expected)}"
        )
    rows = [row for i in scored(datum) for row in inputs(datum, i)]
    in_mean = {row["sequence_ratio_mask"] for row in rows if "sequence_ratio_mask" in row}
    if in_mean and (not in_mean <= {0, 1} or 1 not in in_mean):
        raise RequestError(
            f"datum {place}: sequence_ratio_mask must be 0 or 1, and 1 at a scored position"
        )


def scored(datum: Datum) -> list[int]:
    """The positions whose targets count."""
    return [i for i, is_scored in enumerate(datum.mask) if is_scored]


def targets(datum: Datum, i: int) -> list[int]:
    """The targets of position ``i``."""
    return _all(datum.target_tokens[i])


def inputs(datum: Datum, i: int) -> list[dict[str, float]]:
    """The inputs of each target of position ``i``."""
    columns = {name: _all(values[i]) for name, values in datum.inputs.items()}
    return [
        {name: float(values[k]) for name, values in columns.items()}
        for k in range(len(targets(datum, i)))
    ]


def _all(at: T | Sequence[T]) -> list[T]:
    return list(at) if isinstance(at, Collection) else [at]


def _width(at: float | Sequence[float]) -> int:
    return len(at) if isinstance(at, Collection) else 0


def ids(tokens: Iterable[int], shape: ModelShape) -> None:
    """RequestError if an id is not in the vocabulary."""
    for token in tokens:
        if not 0 <= token < shape.vocab_size:
            raise RequestError(f"token id {token} is not in 0–{shape.vocab_size - 1}")
