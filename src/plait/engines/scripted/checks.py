"""Checks: what the scripted engines refuse, before anything has changed."""

from collections.abc import Iterable, Sequence
from math import isfinite

from plait.core.errors import CapacityError, RequestError
from plait.core.operations import Datum, Sample
from plait.engines.protocol import ModelShape


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
    if len(op.prompt) >= shape.max_context:
        raise CapacityError(
            f"the prompt has {len(op.prompt)} tokens and {shape.name} takes {shape.max_context} "
            "with the answer: shorten it"
        )


def data(batch: Sequence[Datum], shape: ModelShape, needs: tuple[str, ...] = ()) -> None:
    """RequestError unless every datum is well formed and has the loss inputs it ``needs``."""
    if not batch:
        raise RequestError("the batch is empty: give at least one datum")
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
        missing = [name for name in needs if name not in datum.inputs]
        if missing:
            raise RequestError(f"datum {place} lacks {', '.join(missing)}, which the loss needs")
        if n > shape.max_context:
            raise CapacityError(
                f"datum {place} has {n} tokens and {shape.name} takes {shape.max_context}: "
                "shorten it"
            )
        ids(datum.input_tokens, shape)
        ids((t for t, scored in zip(datum.target_tokens, datum.mask, strict=True) if scored), shape)


def ids(tokens: Iterable[int], shape: ModelShape) -> None:
    """RequestError if an id is not in the vocabulary."""
    for token in tokens:
        if not 0 <= token < shape.vocab_size:
            raise RequestError(f"token id {token} is not in 0–{shape.vocab_size - 1}")
