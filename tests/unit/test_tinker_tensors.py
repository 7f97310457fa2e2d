import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import RequestError
from plait.service.tinker_api import schema, tensors


def dense(values: np.ndarray, dtype: int, shape: tuple[int, ...] | None = None):
    shape = values.shape if shape is None else shape
    return schema.Tensor(dense=values.tobytes(), dtype=dtype, shape=shape)


def csr(values, crow, col, shape, dtype: int = schema.FLOAT32):
    tensor = schema.Tensor(dtype=dtype, shape=shape)
    tensor.sparse_csr.values = np.asarray(values, dtype=tensors.NUMPY[dtype]).tobytes()
    tensor.sparse_csr.crow_indices = np.asarray(crow, dtype="<i8").tobytes()
    tensor.sparse_csr.col_indices = np.asarray(col, dtype="<i8").tobytes()
    return tensor


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([[1.5, -2.0], [0.0, 3.25]], dtype="<f4"), schema.FLOAT32),
        (np.array([3, 2**40], dtype="<i8"), schema.INT64),
        (np.array([3, -1], dtype="<i4"), schema.INT32),
    ],
)
def test_dense_tensors_are_what_was_written(values: np.ndarray, dtype: int) -> None:
    read = tensors.read("x", dense(values, dtype))
    assert read.tolist() == values.tolist()
    assert read.dtype == (np.float32 if dtype == schema.FLOAT32 else np.int64)


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    values = np.array([1.5, -2.0, 0.15625], dtype="<f4")
    upper = (values.view("<u4") >> 16).astype("<u2")
    assert tensors.read("x", dense(upper, schema.BFLOAT16)).tolist() == values.tolist()


@given(
    st.integers(1, 6).flatmap(
        lambda k: st.lists(
            st.lists(st.integers(0, 3), min_size=k, max_size=k), min_size=1, max_size=6
        )
    )
)
def test_sparse_tensors_are_the_matrix_that_they_say(rows: list[list[int]]) -> None:
    matrix = np.array(rows, dtype="<i8")
    listed = matrix != 0
    crow = np.concatenate([[0], np.cumsum(listed.sum(1))])
    col = np.concatenate([np.flatnonzero(row) for row in listed])
    tensor = csr(matrix[listed], crow, col, matrix.shape, schema.INT64)
    assert tensors.read("x", tensor).tolist() == rows


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (dense(np.zeros(3, "<f4"), schema.FLOAT32, (2, 2)), "not those of the shape"),
        (dense(np.zeros(4, "<f4"), schema.FLOAT32, (-1, 2)), "the shape"),
        (dense(np.zeros(4, "<f4"), schema.FLOAT32, (2**62, 2**62)), "not those of the shape"),
        (dense(np.zeros(3, "<i1"), schema.FLOAT32, (1,)), "whole number of float32"),
        (dense(np.zeros(1, "<f4"), 9), "unknown dtype 9"),
        (csr([], [0], [], (2**40, 2**40)), "at most"),
        (csr([1.0], [0, 1], [5], (1, 2)), "do not fit"),
        (csr([1.0], [0, 1], [-1], (1, 2)), "do not fit"),
        (csr([1.0], [0, 2], [0], (1, 2)), "do not fit"),
        (csr([1.0, 2.0], [0, 2, 1], [0, 1], (2, 2)), "do not fit"),
        (csr([1.0], [0, 1], [0, 1], (1, 2)), "do not fit"),
        (csr([1.0], [1, 1], [0], (1, 2)), "do not fit"),
        (csr([1.0], [0, 1], [0], (1, 2, 1)), "must have two numbers"),
    ],
)
def test_tensors_that_contradict_themselves_are_refused(tensor, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        tensors.read("x", tensor)


def test_json_tensors_say_the_same() -> None:
    told = {"data": [1, 2], "dtype": "int64", "shape": [2]}
    assert tensors.read("x", tensors.from_json("x", told)).tolist() == [1, 2]
    sparse = {
        "data": [5.0],
        "dtype": "float32",
        "shape": [2, 2],
        "sparse_crow_indices": [0, 0, 1],
        "sparse_col_indices": [1],
    }
    assert tensors.read("x", tensors.from_json("x", sparse)).tolist() == [[0, 0], [0, 5]]
    for wrong in ({"dtype": "int8"}, {"data": ["a"]}, {"data": None}, {"shape": "ab"}):
        with pytest.raises(RequestError, match="x "):
            tensors.from_json("x", {**told, **wrong})
