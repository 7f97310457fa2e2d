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
from plait.service.targets import NOTHING, Targets
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
    shape = (told.shape[0], told.shape[1])
    starts, columns = told.sparse_crow_indices, told.sparse_col_indices
    if (starts is None) != (columns is None):
        raise RequestError(f"{NAME} is sparse in half: give both indices, or none")
    if starts is not None and columns is not None:
        _check_sparse(shape, np.array(starts), np.array(columns), len(told.data))
    elif len(told.data) != shape[0] * shape[1]:
        raise RequestError(
            f"{NAME} has {len(told.data)} numbers, not those of the shape {shape}"
        )
    n_named = len(told.data) - told.data.count(NOTHING)
    if not 1 <= n_named <= MAX_NAMED:
        raise RequestError(f"{NAME} names {n_named} tokens: name 1 to {MAX_NAMED}")
    return Targets(
        shape=shape,
        ids=tuple(told.data),
        starts=None if starts is None else tuple(starts),
        columns=None if columns is None else tuple(columns),
    )


def _check_sparse(
    shape: tuple[int, int], starts: tensors.Array, columns: tensors.Array, n_values: int
) -> None:
    rows = tensors.check_csr(NAME, shape, starts, columns, n_values)
    if (np.diff(rows * shape[1] + columns) <= 0).any():
        raise RequestError(f"{NAME} is sparse and the columns of a row do not rise")


def write_targets(message: Any, targets: Targets, found: Sequence[Sequence[float]]) -> None:
    """Their log-probs in the layout of the request; 0 where nothing is named."""
    values = np.zeros(len(targets.ids), dtype="<f4")
    named = np.array(targets.ids) != NOTHING
    values[named] = np.fromiter(chain.from_iterable(found), "<f4", int(named.sum()))
    message.dtype = schema.FLOAT32
    message.shape.extend(targets.shape)
    if targets.starts is None or targets.columns is None:
        message.dense = values.tobytes()
        return
    message.sparse_csr.values = values.tobytes()
    message.sparse_csr.crow_indices = np.array(targets.starts, dtype="<i8").tobytes()
    message.sparse_csr.col_indices = np.array(targets.columns, dtype="<i8").tobytes()


def write_draws(message: Any, drawn: Sequence[Drawn], k: int) -> None:
    """Two matrices: the tokens, and their log-probs."""
    flat = np.array([pair for row in drawn for pair in row], dtype=np.float64).reshape(-1, 2)
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
