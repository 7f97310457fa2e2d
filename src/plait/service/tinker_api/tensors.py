"""Tensors: arrays to and from the wire, dense or sparse (CSR), within bounds.

What is written there is never believed: a few bytes can claim any shape, so the shape is held
against the bytes (dense) or against ``MAX_ELEMENTS`` (sparse) before anything is allocated; and
``check_room`` holds all sparse tensors of a body together against it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import RequestError
from plait.service.tinker_api import schema

Array = NDArray[Any]

MAX_ELEMENTS = 1 << 24
"""Of the sparse tensors of one body written out: 16,384 positions of 1,024 targets each, beyond any
distillation that has been published, and 128 MiB."""
NUMPY: dict[int, "np.dtype[Any]"] = {
    schema.FLOAT32: np.dtype("<f4"),
    schema.INT64: np.dtype("<i8"),
    schema.INT32: np.dtype("<i4"),
    schema.BFLOAT16: np.dtype("<u2"),
}


def check_room(tensors: Iterable[Any]) -> None:
    """RequestError if the sparse ones among these would be too large together, written out."""
    n = sum(
        max(0, tensor.shape[0]) * max(0, tensor.shape[1])
        for tensor in tensors
        if tensor.WhichOneof("encoding") == "sparse_csr" and len(tensor.shape) == 2
    )
    if n > MAX_ELEMENTS:
        raise RequestError(
            f"the sparse tensors have {n} elements together: at most {MAX_ELEMENTS}; send less "
            "at once"
        )


def read(name: str, tensor: Any) -> Array:
    """A tensor message as an array of int64 or float32; RequestError if it contradicts itself."""
    kind = NUMPY.get(tensor.dtype)
    if kind is None:
        raise RequestError(f"{name} has the unknown dtype {tensor.dtype}")
    sparse = tensor.WhichOneof("encoding") == "sparse_csr"
    values = _numbers(name, tensor.sparse_csr.values if sparse else tensor.dense, kind)
    if tensor.dtype == schema.BFLOAT16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    shape = tuple(tensor.shape)
    if any(n < 0 for n in shape):
        raise RequestError(f"{name} has the shape {shape}")
    if sparse:
        return _filled(name, tensor.sparse_csr, values, shape)
    try:
        array = values.reshape(shape or (-1,))
    except (ValueError, OverflowError):
        raise RequestError(
            f"{name} has {values.size} numbers, not those of the shape {shape}"
        ) from None
    return array.astype(np.int64) if array.dtype.kind == "i" else array


def _filled(name: str, csr: Any, values: Array, shape: Sequence[int]) -> Array:
    """A CSR matrix written out; what is not listed is 0."""
    if len(shape) != 2:
        raise RequestError(f"{name} is sparse: its shape {tuple(shape)} must have two numbers")
    starts = _numbers(name, csr.crow_indices, np.dtype("<i8"))
    columns = _numbers(name, csr.col_indices, np.dtype("<i8"))
    rows = check_csr(name, shape, starts, columns, values.size)
    out = np.zeros(shape, dtype=np.int64 if values.dtype.kind == "i" else np.float32)
    out[rows, columns] = values
    return out


def check_csr(
    name: str, shape: Sequence[int], starts: Array, columns: Array, n_values: int
) -> Array:
    """The row of each value; RequestError if a matrix's indices contradict what else it says."""
    n_rows, n_columns = shape
    if n_rows * n_columns > MAX_ELEMENTS:
        raise RequestError(f"{name} is sparse, of {n_rows} × {n_columns}: at most {MAX_ELEMENTS}")
    counts = np.diff(starts)
    if (
        starts.size != n_rows + 1
        or starts[0] != 0
        or starts[-1] != n_values
        or n_values != columns.size
        or (counts < 0).any()
        or (columns.size and not 0 <= columns.min() <= columns.max() < n_columns)
    ):
        raise RequestError(f"{name} is sparse and its indices do not fit its shape and values")
    return np.repeat(np.arange(n_rows), counts)


def _numbers(name: str, data: bytes, kind: "np.dtype[Any]") -> Array:
    if len(data) % kind.itemsize:
        raise RequestError(f"{name} has {len(data)} bytes: not a whole number of {kind.name}")
    return np.frombuffer(data, dtype=kind)


def from_json(name: str, told: Mapping[str, Any]) -> Any:
    """The tensor message that the JSON form (``data``, ``dtype``, ``shape``, CSR) says."""
    tensor = schema.Tensor()
    code = {"int64": schema.INT64, "float32": schema.FLOAT32}.get(str(told.get("dtype")))
    if code is None:
        raise RequestError(f"{name} has the unknown dtype {told.get('dtype')!r}")
    try:
        tensor.dtype = code
        tensor.shape.extend(told.get("shape") or ())
        data = np.asarray(told["data"], dtype=NUMPY[code]).tobytes()
        if told.get("sparse_crow_indices") is None:
            tensor.dense = data
        else:
            tensor.sparse_csr.values = data
            tensor.sparse_csr.crow_indices = _indices(told["sparse_crow_indices"])
            tensor.sparse_csr.col_indices = _indices(told["sparse_col_indices"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{name} is no tensor ({error})") from None
    return tensor


def _indices(values: Sequence[int]) -> bytes:
    return np.asarray(values, dtype="<i8").tobytes()
