"""Alternatives: tokens other than the prompt's own, in its places: those that a client names
(``target_prompt_logprobs``) and those that are drawn for it (``prompt_alt_tokens_k``).

Both are matrices with a row for each token of the prompt but the first. What is named is bounded by
the cells that name a token, not by the matrix: scoring one costs what one of the likeliest costs.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from plait.core.errors import RequestError
from plait.core.operations import MAX_NAMED, MAX_TOPK
from plait.core.operations import Alternatives as Drawn
from plait.service.targets import Ints, Targets
from plait.service.tinker_api import bodies, schema, tensors

NAME = "target_prompt_logprobs"


def check_draws(k: int) -> None:
    """RequestError if so many cannot be drawn at each token of a prompt."""
    if not 0 <= k <= MAX_TOPK:
        raise RequestError(f"prompt_alt_tokens_k is {k}: give 0 to {MAX_TOPK}")


def read_targets(told: bodies.Ids, n_rows: int) -> Targets:
    """What a client names; RequestError if that contradicts itself or is too much."""
    if told.dtype != "int64":
        raise RequestError(f"{NAME} has the dtype {told.dtype[:60]!r}: token ids are int64")
    if len(told.shape) != 2 or told.shape[0] != n_rows:
        raise RequestError(
            f"{NAME} has the shape {tuple(told.shape[:4])}: it must have two numbers, and as many "
            f"rows as the prompt has tokens behind the first, {n_rows}"
        )
    targets = Targets(
        shape=(told.shape[0], told.shape[1]),
        ids=_ints(told.data),
        starts=None if told.sparse_crow_indices is None else _ints(told.sparse_crow_indices),
        columns=None if told.sparse_col_indices is None else _ints(told.sparse_col_indices),
    )
    _check_layout(targets)
    n_named = int(targets.named.sum())
    if not 1 <= n_named <= MAX_NAMED:
        raise RequestError(f"{NAME} names {n_named} tokens: name 1 to {MAX_NAMED}")
    return targets


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _check_layout(targets: Targets) -> None:
    shape, n = targets.shape, targets.ids.size
    starts, columns = targets.starts, targets.columns
    if starts is None and columns is None:
        if n != shape[0] * shape[1]:
            raise RequestError(f"{NAME} has {n} numbers, not those of the shape {shape}")
        return
    if starts is None or columns is None:
        raise RequestError(f"{NAME} is sparse in half: give both indices, or none")
    rows = tensors.check_csr(NAME, shape, starts, columns, n)
    if (np.diff(rows * shape[1] + columns) <= 0).any():
        raise RequestError(f"{NAME} is sparse and the columns of a row do not rise")


def write_targets(message: Any, targets: Targets, found: Sequence[Sequence[float]]) -> None:
    """Their log-probs in the layout of the request; 0 where nothing is named."""
    values, named = np.zeros(targets.ids.size, dtype="<f4"), targets.named
    values[named] = np.fromiter(chain.from_iterable(found), "<f4", int(named.sum()))
    message.dtype = schema.FLOAT32
    message.shape.extend(targets.shape)
    if targets.starts is None or targets.columns is None:
        message.dense = values.tobytes()
        return
    message.sparse_csr.values = values.tobytes()
    message.sparse_csr.crow_indices = targets.starts.astype("<i8").tobytes()
    message.sparse_csr.col_indices = targets.columns.astype("<i8").tobytes()


def write_draws(message: Any, drawn: Sequence[Drawn], k: int) -> None:
    """Two matrices: the tokens, and their log-probs."""
    pairs = chain.from_iterable(drawn)
    flat = np.fromiter(chain.from_iterable(pairs), np.float64).reshape(-1, 2)
    for tensor, code, values in (
        (message.tokens, schema.INT64, flat[:, 0]),
        (message.logprobs, schema.FLOAT32, flat[:, 1]),
    ):
        tensor.dtype = code
        tensor.shape.extend((len(drawn), k))
        tensor.dense = values.astype(tensors.NUMPY[code]).tobytes()


def as_json(message: Any) -> dict[str, Any]:
    """A tensor as the JSON of this API has it."""
    sparse = message.WhichOneof("encoding") == "sparse_csr"
    values = message.sparse_csr.values if sparse else message.dense
    told: dict[str, Any] = {
        "data": np.frombuffer(values, tensors.NUMPY[message.dtype]).tolist(),
        "dtype": "int64" if message.dtype == schema.INT64 else "float32",
        "shape": list(message.shape),
    }
    if sparse:
        csr = message.sparse_csr
        told["sparse_crow_indices"] = np.frombuffer(csr.crow_indices, "<i8").tolist()
        told["sparse_col_indices"] = np.frombuffer(csr.col_indices, "<i8").tolist()
    return told
