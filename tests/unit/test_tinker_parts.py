import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import RequestError
from plait.service.tinker_api import batches, parts, schema

HEAD = schema.ForwardBackwardRequest(model_id="m", seq_id=1).SerializeToString()


def whole(n_data: int, n_spans: int) -> bytes:
    message = schema.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="ppo")
    message.loss_fn_config["a"] = 0.5
    for _ in range(n_data):
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = bytes(400)
        datum.loss_fn_inputs["weights"].dense = bytes(400)
        for _ in range(n_spans):
            datum.loss_fn_input_spans.add().sampled_tokens.length = 1
    return message.SerializeToString()


def test_what_a_client_sends_is_let_by() -> None:
    parts.check(HEAD)
    parts.check(whole(1024, 40))


@pytest.mark.parametrize(
    "bomb",
    [
        HEAD + b"\x1a\x00" * (2 * parts.MAX_PARTS),
        HEAD
        + schema.ForwardBackwardRequest(data=[{}]).SerializeToString()[:1]
        # One datum of so many empty chunks; its length as a varint of four bytes.
        + b"\x80\x80\x80\x01"
        + b"\x0a\x00" * (1 << 20),
    ],
    ids=["data", "chunks"],
)
def test_bodies_that_unfold_are_refused_before_they_do(bomb: bytes) -> None:
    batches.parse(bomb)  # it is good protobuf
    with pytest.raises(RequestError, match="more than 200000 parts"):
        parts.check(bomb)


@pytest.mark.parametrize("body", [b"\x1a\x05a", b"\xff", b"\x0f", b"\x80" * 11, b"\x09abc"])
def test_what_is_no_protobuf_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match="no protobuf"):
        parts.check(body)


@given(st.binary(max_size=200))
def test_nothing_but_a_refusal_comes_of_any_bytes(body: bytes) -> None:
    for read in (parts.check, batches.parse, batches.read):
        with contextlib.suppress(RequestError):
            read(body)
