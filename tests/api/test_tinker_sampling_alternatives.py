"""Tokens that a client names, or has drawn, in the places of its prompt's, through the door."""

import json

import numpy as np
import pytest
from tinker_support import PROMPT, Door, ok

from plait.core.operations import MAX_NAMED
from plait.service.bodies import MAX_BODY

ROWS = len(PROMPT) - 1


def targets(cells: list[list[int]], **over) -> dict:
    data = [token for row in cells for token in row]
    told = {"data": data, "dtype": "int64", "shape": [len(cells), len(cells[0])], **over}
    return {"target_prompt_logprobs": told}


def matrix(tensor, kind: str = "<f4") -> np.ndarray:
    return np.frombuffer(tensor.dense, kind).reshape(tuple(tensor.shape))


async def test_named_tokens_are_scored(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    cells = [[token, -1, 7] for token in PROMPT[1:]]
    out = await one.result(await ok(one.sample(sampler, prompt_logprobs=True, **targets(cells))))
    found = matrix(out.target_prompt_logprobs)
    assert found.shape == (ROWS, 3)
    assert found[:, 0].tolist() == np.frombuffer(out.prompt_logprobs, "<f4")[1:].tolist()
    assert (found[:, 1] == 0).all()
    assert (found[:, 2] < 0).all()
    csr = {
        "data": [7, 8],
        "dtype": "int64",
        "shape": [ROWS, 1000],
        "sparse_crow_indices": [0, 0, 0, 2],
        "sparse_col_indices": [3, 999],
    }
    alone = await one.result(await ok(one.sample(sampler, 1, target_prompt_logprobs=csr)))
    assert not alone.prompt_logprobs
    told = alone.target_prompt_logprobs
    assert list(told.shape) == [ROWS, 1000]
    values = np.frombuffer(told.sparse_csr.values, "<f4")
    assert values[0] == pytest.approx(found[2, 2], abs=1e-5)
    assert np.frombuffer(told.sparse_csr.crow_indices, "<i8").tolist() == [0, 0, 0, 2]
    assert np.frombuffer(told.sparse_csr.col_indices, "<i8").tolist() == [3, 999]


async def test_tokens_are_drawn_in_the_prompts_places(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    out = await one.result(await ok(one.sample(sampler, prompt_alt_tokens_k=4)))
    tokens = matrix(out.prompt_alt_tokens.tokens, "<i8")
    logprobs = matrix(out.prompt_alt_tokens.logprobs)
    assert tokens.shape == logprobs.shape == (ROWS, 4)
    scored = await one.result(await ok(one.sample(sampler, 1, **targets(tokens.tolist()))))
    assert matrix(scored.target_prompt_logprobs) == pytest.approx(logprobs, abs=1e-5)
    again = await one.result(await ok(one.sample(sampler, 2, prompt_alt_tokens_k=4, num_samples=3)))
    assert again.prompt_alt_tokens == out.prompt_alt_tokens, "one seed, the same draws"
    other = await ok(one.sample(sampler, 3, prompt_alt_tokens_k=4, params={"seed": 2}))
    assert (await one.result(other)).prompt_alt_tokens.tokens != out.prompt_alt_tokens.tokens


async def test_a_client_without_protobuf_reads_them_too(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    promise = await ok(one.sample(sampler, prompt_alt_tokens_k=2, **targets([[7, -1]] * ROWS)))
    await one.result(promise)
    told = await ok(one.post("retrieve_future", request_id=promise["request_id"]))
    assert told["target_prompt_logprobs"]["shape"] == [ROWS, 2]
    assert told["target_prompt_logprobs"]["data"][1] == 0
    assert told["prompt_alt_tokens"]["tokens"]["dtype"] == "int64"
    assert len(told["prompt_alt_tokens"]["logprobs"]["data"]) == 2 * ROWS


async def test_as_many_as_are_allowed_come_in_and_go_out(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    width = MAX_NAMED // ROWS
    csr = {
        "data": [i % 250 for i in range(width)] * ROWS,
        "dtype": "int64",
        "shape": [ROWS, width + 5],
        "sparse_crow_indices": [width * i for i in range(ROWS + 1)],
        "sparse_col_indices": list(range(5, width + 5)) * ROWS,
    }
    assert len(json.dumps(csr)) > MAX_BODY
    out = await one.result(await ok(one.sample(sampler, target_prompt_logprobs=csr)))
    values = np.frombuffer(out.target_prompt_logprobs.sparse_csr.values, "<f4")
    rows = values.reshape(ROWS, width)
    assert values.max() < 0
    assert (rows[:, 1] == rows[:, 251]).all()
    assert len({float(row[1]) for row in rows}) == ROWS
    csr["data"] = [*csr["data"], 1, 1, 1]
    csr["sparse_crow_indices"][-1] += 3
    csr["sparse_col_indices"] = [*csr["sparse_col_indices"], width + 5, width + 6, width + 7]
    csr["shape"] = [ROWS, width + 8]
    refused = await one.sample(sampler, 1, target_prompt_logprobs=csr)
    assert refused.status_code == 400
    assert f"name 1 to {MAX_NAMED}" in refused.json()["error"]["message"]


BAD = {
    "wrong rows": targets([[1, 2]] * (ROWS + 1)),
    "no row": targets([[1, 2]] * (ROWS - 1)),
    "no id": targets([[-1, -1]] * ROWS),
    "two dimensions too few": targets([[1]] * ROWS, shape=[]),
    "not all numbers": targets([[1]] * ROWS, shape=[ROWS, 5]),
    "huge K": targets([[1]] * ROWS, shape=[ROWS, 2**31 - 1]),
    "huge sparse K": targets(
        [[1]], shape=[ROWS, 10**9], sparse_crow_indices=[0, 1, 1, 1], sparse_col_indices=[5]
    ),
    "indices that lie": targets(
        [[1]], shape=[ROWS, 9], sparse_crow_indices=[0, 7, 1, 1], sparse_col_indices=[5]
    ),
    "a column beyond": targets(
        [[1]], shape=[ROWS, 9], sparse_crow_indices=[0, 1, 1, 1], sparse_col_indices=[9]
    ),
    "one index of two": targets([[1]], shape=[ROWS, 9], sparse_col_indices=[0]),
    "floats": targets([[1]] * ROWS, dtype="float32"),
    "half an id": targets([[1.5]] * ROWS),
    "below -1": targets([[-2]] * ROWS),
    "beyond 64 bits": targets([[2**63]] * ROWS),
    "no tensor": {"target_prompt_logprobs": [1, 2]},
    "k negative": {"prompt_alt_tokens_k": -1},
    "k huge": {"prompt_alt_tokens_k": 10**9},
    "k text": {"prompt_alt_tokens_k": "many"},
}


@pytest.mark.parametrize("wrong", BAD)
async def test_what_is_wrong_is_refused_at_once_and_once(door: Door, wrong: str) -> None:
    one = await door.session()
    sampler = await one.sampler()
    refused = await one.sample(sampler, **BAD[wrong])
    assert refused.status_code in (400, 422), refused.text
    message = refused.json()["error"]["message"]
    assert message
    assert len(message) < 300
    assert "\n" not in message
    await one.result(await ok(one.sample(sampler, 1)))


async def test_no_number_and_no_text_chunk(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    for name in ("target_prompt_logprobs", "prompt_alt_tokens_k"):
        body = (
            f'{{"sampling_session_id": "{sampler}", "seq_id": 0, "sampling_params": {{}}, '
            f'"prompt": {{"chunks": [{{"tokens": [1, 2]}}]}}, "{name}": '
        )
        end = "NaN}" if name.endswith("_k") else '{"data": [NaN], "dtype": "int64"}}'
        refused = await one.http.post(
            "/api/v1/asample", content=body + end, headers={"Content-Type": "application/json"}
        )
        assert refused.status_code in (400, 422), refused.text
    image = {"chunks": [{"type": "image", "data": "", "format": "png"}]}
    refused = await one.post(
        "asample",
        sampling_session_id=sampler,
        seq_id=0,
        prompt=image,
        sampling_params={"max_tokens": 1},
        prompt_alt_tokens_k=2,
        **targets([[1]] * ROWS),
    )
    assert refused.status_code == 400
    assert "a prompt chunk of image" in refused.json()["error"]["message"]


async def test_an_id_above_the_vocabulary_fails_the_request(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    failed = await one.result(await ok(one.sample(sampler, **targets([[7], [10**6], [-1]]))))
    assert failed["category"] == "user"
    assert str(10**6) in failed["error"]
    await one.result(await ok(one.sample(sampler, 1)))
