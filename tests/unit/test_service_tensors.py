"""Tensors: what a few bytes claim is held against a bound before anything is made of it."""

import numpy as np
import pytest

from plait.core.errors import RequestError
from plait.service.tinker_api import batches, schema, tensors


def _sparse(datum, name: str, shape: tuple[int, int], dtype: int) -> None:
    tensor = datum.loss_fn_inputs[name]
    tensor.shape[:], tensor.dtype = shape, dtype
    tensor.sparse_csr.crow_indices = np.zeros(shape[0] + 1, "<i8").tobytes()


def _body(n: int, rows: int = 64, columns: int = 1024) -> bytes:
    """``n`` data of sparse targets and weights that list nothing."""
    message = schema.ForwardBackwardRequest(
        model_id="s-00000000:train:0", seq_id=1, loss_fn="cross_entropy"
    )
    for _ in range(n):
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.zeros(rows, "<i4").tobytes()
        _sparse(datum, "target_tokens", (rows, columns), schema.INT64)
        _sparse(datum, "weights", (rows, columns), schema.FLOAT32)
    return bytes(message.SerializeToString())


def test_sparse_tensors_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAX_ELEMENTS", 2**18)
    assert len(batches.read(_body(2)).data) == 2
    with pytest.raises(RequestError, match="at most 262144; send less"):
        batches.read(_body(3))
    with pytest.raises(RequestError, match="at most"):
        batches.read(_body(1, rows=256))
