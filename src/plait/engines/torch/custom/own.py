"""Own: what a client's own loss reads of each datum, and how much it may make of it.

The inputs are those that the loss names, of the ranks that it declares, as they were sent: others
are not looked at. What all values of a request's data may take is divided among the data by their
size, so what becomes of one does not depend on the order in which they are gone through.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from plait.core.custom_losses import LOGPROBS, TARGETS, CustomLoss
from plait.core.errors import RequestError
from plait.core.operations import Datum

DATUM_BYTES = 64 * 2**20
"""Values of one datum together: with those of the gradient some 150 MB."""
REQUEST_BYTES = 2 * 2**30
"""Values of all data of a request, not at the same time: ten seconds at the worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """One datum's part."""

    shape: tuple[int, ...]
    """Of its log-probs, at scored positions: ``(n,)`` or ``(n, K)``."""
    inputs: dict[str, torch.Tensor]
    allowance: int
    """Bytes that all values of the loss may have."""


def own_parts(loss: CustomLoss, data: Sequence[Datum]) -> list[Own]:
    """Of well-formed data; RequestError names the first that is not what the loss declares."""
    shapes = [_shape(loss, i, datum) for i, datum in enumerate(data)]
    inputs = [_inputs(loss, i, datum) for i, datum in enumerate(data)]
    sizes = [
        int(np.prod(shape)) + sum(t.numel() for t in found.values())
        for shape, found in zip(shapes, inputs, strict=True)
    ]
    total = sum(sizes)
    return [
        Own(shape=shape, inputs=found, allowance=min(DATUM_BYTES, REQUEST_BYTES * size // total))
        for shape, found, size in zip(shapes, inputs, sizes, strict=True)
    ]


def _shape(loss: CustomLoss, i: int, datum: Datum) -> tuple[int, ...]:
    targets = np.shape(datum.target_tokens)
    if len(targets) != loss.inputs[0].rank:
        raise RequestError(
            f"datum {i} has target_tokens of rank {len(targets)}, and custom loss "
            f"{loss.name!r:.80} declares {LOGPROBS} of rank {loss.inputs[0].rank}"
        )
    n = sum(map(bool, datum.mask))
    if not n:
        raise RequestError(f"datum {i} has no scored position: a custom loss needs one of each")
    return (n, *targets[1:])


def _inputs(loss: CustomLoss, i: int, datum: Datum) -> dict[str, torch.Tensor]:
    found = {}
    for each in loss.inputs[1:]:
        given: Any = datum.inputs.get(each.name)
        if each.name == TARGETS:
            given = datum.target_tokens
        if given is None:
            raise RequestError(
                f"datum {i} has no {each.name}, which custom loss {loss.name!r:.80} reads"
            )
        found[each.name] = _tensor(i, each.name, each.rank, given)
    return found


def _tensor(i: int, name: str, rank: int, given: Any) -> torch.Tensor:
    try:
        array = np.asarray(given)
        kind = np.int64 if array.dtype.kind in "iu" else np.float32
        with np.errstate(over="ignore"):
            array = array.astype(kind)
    except (TypeError, ValueError, OverflowError):
        raise RequestError(f"datum {i}: {name} must be numbers, as many in each row") from None
    if rank == 0 and array.shape == (1,):  # the wire has no other way to say it
        array = array.reshape(())
    if array.ndim != rank or not array.size:
        raise RequestError(
            f"datum {i}: {name} has the shape {array.shape}, and the loss declares rank {rank}"
        )
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)
