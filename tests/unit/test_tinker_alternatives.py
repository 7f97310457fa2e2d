"""Alternatives: what a client names in its prompt's places, and what is drawn there."""

import numpy as np
import pytest
from pydantic import ValidationError
from test_tinker_samples import RESULT, work

from plait.core.errors import RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import MAX_NAMED, SampleResult
from plait.service.ticket import operation
from plait.service.tinker_api import samples, schema

FOUND = SampleResult(
    samples=RESULT.samples,
    prompt_targets=((-0.5, -1.5), (-2.5,)),
    prompt_draws=(((9, -1.0), (8, -2.0)), ((9, -3.0), (9, -3.0))),
)


def ids(data: list, shape: tuple[int, ...] = (2, 3), **over) -> dict:
    return {"target_prompt_logprobs": {"data": data, "dtype": "int64", "shape": shape, **over}}


def sparse(
    data: list, crow: list | None, col: list | None, shape: tuple[int, ...] = (2, 3)
) -> dict:
    return ids(data, shape, sparse_crow_indices=crow, sparse_col_indices=col)


DENSE = ids([5, -1, 6, -1, 7, -1])
SPARSE = sparse([5, -1, 6, 7], [0, 3, 4], [0, 1, 2, 1])


def asked(told):
    return operation(told, OpId("x"), RunId("r"), 1)


@pytest.mark.parametrize("told", [DENSE, SPARSE])
def test_what_is_named_is_read_row_by_row(told: dict) -> None:
    op = asked(work(**told, prompt_alt_tokens_k=2))
    assert op.prompt_targets == ((5, 6), (7,))
    assert op.prompt_draws == 2
    assert not op.prompt_logprobs
    bare = asked(work())
    assert (bare.prompt_targets, bare.prompt_draws) == ((), 0)


def test_a_dense_answer_has_the_requests_shape() -> None:
    out = schema.SampleResponse.FromString(samples.write(work(**DENSE), FOUND))
    tensor = out.target_prompt_logprobs
    assert (tensor.dtype, list(tensor.shape)) == (schema.FLOAT32, [2, 3])
    assert np.frombuffer(tensor.dense, "<f4").tolist() == [-0.5, 0, -1.5, 0, -2.5, 0]
    assert not out.HasField("prompt_alt_tokens")


def test_a_sparse_answer_has_the_requests_layout() -> None:
    out = schema.SampleResponse.FromString(samples.write(work(**SPARSE), FOUND))
    csr = out.target_prompt_logprobs.sparse_csr
    assert np.frombuffer(csr.values, "<f4").tolist() == [-0.5, 0, -1.5, -2.5]
    assert np.frombuffer(csr.crow_indices, "<i8").tolist() == [0, 3, 4]
    assert np.frombuffer(csr.col_indices, "<i8").tolist() == [0, 1, 2, 1]
    assert list(out.target_prompt_logprobs.shape) == [2, 3]


def test_what_is_drawn_is_written_as_two_matrices() -> None:
    body = samples.write(work(prompt_alt_tokens_k=2), FOUND)
    drawn = schema.SampleResponse.FromString(body).prompt_alt_tokens
    assert (drawn.tokens.dtype, list(drawn.tokens.shape)) == (schema.INT64, [2, 2])
    assert np.frombuffer(drawn.tokens.dense, "<i8").tolist() == [9, 8, 9, 9]
    assert (drawn.logprobs.dtype, list(drawn.logprobs.shape)) == (schema.FLOAT32, [2, 2])
    assert np.frombuffer(drawn.logprobs.dense, "<f4").tolist() == [-1, -2, -3, -3]
    told = samples.as_json(body)["prompt_alt_tokens"]
    assert told["tokens"] == {"data": [9, 8, 9, 9], "dtype": "int64", "shape": [2, 2]}


def test_a_prompt_of_one_token_has_empty_matrices() -> None:
    told = work(prompt={"chunks": [{"tokens": [5]}]}, prompt_alt_tokens_k=2)
    body = samples.write(told, SampleResult(samples=RESULT.samples))
    out = schema.SampleResponse.FromString(body)
    assert out.HasField("prompt_alt_tokens")
    assert list(out.prompt_alt_tokens.tokens.shape) == [0, 2]


def test_json_tells_the_layout_too() -> None:
    told = samples.as_json(samples.write(work(**SPARSE), FOUND))["target_prompt_logprobs"]
    assert told == {
        "data": [-0.5, 0, -1.5, -2.5],
        "dtype": "float32",
        "shape": [2, 3],
        "sparse_crow_indices": [0, 3, 4],
        "sparse_col_indices": [0, 1, 2, 1],
    }


@pytest.mark.parametrize(
    ("over", "why"),
    [
        (ids([1] * 9, (3, 3)), "as many rows as the prompt has tokens behind the first, 2"),
        (ids([1] * 3, (3,)), "as many rows"),
        (ids([1] * 6, (2, 3, 1)), "as many rows"),
        (ids([1] * 5), "5 numbers, not those of the shape"),
        (ids([], (2, 0)), "names 0 tokens"),
        (ids([-1] * 6), "names 0 tokens"),
        (ids([1] * 6, dtype="float32"), "token ids are int64"),
        (ids([1] * (MAX_NAMED + 2), (2, MAX_NAMED // 2 + 1)), f"name 1 to {MAX_NAMED}"),
        (sparse([1], [0, 1, 1], None), "sparse in half"),
        (sparse([1], None, [0]), "sparse in half"),
        (sparse([1], [0, 1], [0]), "indices do not fit"),
        (sparse([1], [], [0]), "indices do not fit"),
        (sparse([1], [0, 2, 2], [0]), "indices do not fit"),
        (sparse([1, 2], [0, 2, 1], [0, 1]), "indices do not fit"),
        (sparse([1], [1, 1, 1], [0]), "indices do not fit"),
        (sparse([1], [0, 1, 1], [3]), "indices do not fit"),
        (sparse([1, 2], [0, 2, 2], [1, 1]), "do not rise"),
        (sparse([1, 2], [0, 2, 2], [1, 0]), "do not rise"),
        (sparse([1], [0, 1, 1], [0], (2, 2**30)), "is sparse, of 2 × 1073741824"),
        ({"prompt_alt_tokens_k": -1}, "prompt_alt_tokens_k is -1: give 0 to 20"),
        ({"prompt_alt_tokens_k": 21}, "give 0 to 20"),
        (
            {"prompt": {"chunks": [{"type": "image"}]}, **DENSE, "prompt_alt_tokens_k": 1},
            "a prompt chunk of image",
        ),
    ],
)
def test_what_contradicts_itself_or_is_too_much_is_refused(over: dict, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        work(**over)


@pytest.mark.parametrize(
    "over",
    [
        ids([1, 2, 3, 4, 5, 0.5]),
        ids([1, 2, 3, 4, 5, float("nan")]),
        ids([1, 2, 3, 4, 5, -2]),
        ids([1, 2, 3, 4, 5, 2**31]),
        ids([1] * 6, (-2, -3)),
        ids([1] * 6, tuple(range(99))),
        sparse([1], [0, 1, -1], [0]),
    ],
)
def test_numbers_that_are_no_ids_are_no_body(over: dict) -> None:
    with pytest.raises(ValidationError):
        work(**over)
