"""Training through the door: bodies in, answers out, and numbers that are used up."""

import json
from typing import Any

import numpy as np
import pytest
import zstandard
from tinker_support import PROTOBUF, Door, gradient, logprobs, ok, put

from plait.service import typed


async def test_a_model_is_trained(door: Door) -> None:
    one = await door.session()
    model = await one.model()
    assert model.model_id == f"{one.session_id}:train:0"
    info = await ok(one.post("get_info", model_id=model.model_id))
    assert (info["lora_rank"], info["model_data"]["model_name"]) == (4, info["model_name"])
    assert info["model_data"]["tokenizer_id"].startswith("/")
    scored = await model.gradient(forward=True, n=2)
    first = await model.gradient(n=2)
    assert len(logprobs(first)) == 16, "one for each target, weighted or not"
    assert logprobs(first) == pytest.approx(logprobs(scored), abs=1e-5)
    assert first.metrics["loss:sum"] == pytest.approx(scored.metrics["loss:sum"], rel=1e-4)
    step = await model.step()
    assert step["metrics"]["grad_norm:mean"] > 0
    after = await model.gradient(n=2)
    assert after.metrics["loss:sum"] < first.metrics["loss:sum"]


async def test_a_request_sent_twice_is_the_same(door: Door) -> None:
    model = await (await door.session()).model()
    first = await ok(model.data())
    assert await ok(model.data(seq=1)) == first
    assert await ok(model.send("optim_step", seq=1)) == first, "whatever came under its number"
    assert logprobs(await model.session.result(first))


async def test_chunks_come_in_any_order(door: Door) -> None:
    model = await (await door.session()).model()
    promises = {seq: await ok(model.data(seq=seq)) for seq in (3, 2, 1)}
    model.seq = 3
    losses = [(await model.session.result(promises[seq])).metrics["loss:sum"] for seq in (1, 2, 3)]
    assert losses[0] == pytest.approx(losses[2])
    assert (await model.step())["metrics"]


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("optim_step", {"optimizer_params": {"type": "dimuon"}}, "this server has adamw"),
        ("save_weights", {"path": "../up"}, "checkpoint name"),
        ("save_weights_external", {"path": "a", "age_encryption_recipients": ["k"]}, "encrypt"),
        ("load_weights", {"path": "tinker://s-0:train:9/weights/a", "optimizer": False}, "no"),
    ],
)
async def test_what_is_wrong_with_a_request_fails_it_and_uses_up_its_number(
    door: Door, path: str, body: dict, why: str
) -> None:
    model = await (await door.session()).model()
    failed = await model.carry_out(path, **body)
    assert failed["category"] == "user"
    assert why in failed["error"]
    assert (await model.step())["metrics"], "the next number is not held up"


async def test_numbers_that_run_away_are_the_users_and_it_is_told_what_to_do(door: Door) -> None:
    model = await (await door.session()).model()
    message = gradient(model.model_id, model.number(), loss="importance_sampling")
    (datum,) = message.data
    del datum.loss_fn_inputs["weights"]
    put(datum, "logprobs", np.full(8, -1e4, "<f4"))  # a ratio that no number holds
    put(datum, "advantages", np.ones(8, "<f4"))
    sent = model.session.http.post(
        "/api/v1/forward_backward", content=message.SerializeToString(), headers=PROTOBUF
    )
    failed = await model.session.result(await ok(sent))
    assert failed["category"] == "user"
    assert "is not finite: check advantages and log-probs" in failed["error"]
    assert logprobs(await model.gradient())
    failed = await model.carry_out("optim_step", adam_params={"learning_rate": 1e308})
    assert failed["category"] == "user"
    assert "learning rate 1e+308" in failed["error"]
    assert "lower it" in failed["error"]
    assert (await model.step())["metrics"]


async def test_an_unknown_loss_does_not_hold_up_the_line(door: Door) -> None:
    model = await (await door.session()).model()
    failed = await model.gradient(loss="pop")
    assert (failed["category"], "cross_entropy" in failed["error"]) == ("user", True)
    assert logprobs(await model.gradient())


BAD = [
    b'{"model_id": "MODEL", "seq_id": 1, "adam_params": {"learning_rate": NaN}}',
    b'{"model_id": "MODEL", "seq_id": 1, "adam_params": {"learning_rate": "much"}}',
    b'{"model_id": "MODEL", "seq_id": 1, "adam_params": {"learning_rate": 1e999}}',
    b'{"model_id": "MODEL", "seq_id": 1, "adam_params": 5}',
]


@pytest.mark.parametrize("body", BAD)
async def test_a_body_that_is_refused_uses_up_its_number(door: Door, body: bytes) -> None:
    model = await (await door.session()).model()
    raw = body.replace(b"MODEL", model.model_id.encode())
    headers = {"Content-Type": "application/json"}
    refused = await model.session.http.post("/api/v1/optim_step", content=raw, headers=headers)
    assert refused.status_code == 400, refused.text
    model.seq = 1
    assert (await model.step())["metrics"]
    assert (await model.session.result({"request_id": f"{model.model_id}:1"}))["category"] == "user"


IMAGE = {"model_input": {"chunks": [{"type": "image"}]}, "loss_fn_inputs": {}}
BEYOND = {"model_input": {"chunks": [{"tokens": [2**40]}]}, "loss_fn_inputs": {}}


@pytest.mark.parametrize("datum", [IMAGE, BEYOND, 5])
@pytest.mark.parametrize("path", ["forward_backward", "forward"])
async def test_data_in_json_that_are_refused_use_up_their_number(
    door: Door, path: str, datum: Any
) -> None:
    model = await (await door.session()).model()
    asked = {"data": [datum], "loss_fn": "cross_entropy"}
    refused = await model.send(path, forward_backward_input=asked)
    assert refused.status_code == 400, refused.text
    assert (await model.step())["metrics"]
    assert (await model.session.result({"request_id": f"{model.model_id}:1"}))["category"] == "user"


async def test_protobuf_that_is_refused_uses_up_its_number(door: Door) -> None:
    model = await (await door.session()).model()
    raw = gradient(model.model_id, model.number()).SerializeToString()
    for body in (raw + b"\x1a\x00" * 300_000, raw + b"\x1a\x7f"):
        refused = await model.session.http.post(
            "/api/v1/forward_backward", content=body, headers=PROTOBUF
        )
        assert refused.status_code == 400
    assert (await model.step())["metrics"]


async def test_a_load_that_is_refused_uses_up_its_number(door: Door) -> None:
    model = await (await door.session()).model()
    refused = await model.send("load_weights", path="tinker://a/weights/b")
    assert refused.status_code == 400
    assert (await model.step())["metrics"]


async def test_a_large_batch_is_read_off_the_event_loop(door: Door) -> None:
    model = await (await door.session()).model()
    assert len(gradient(model.model_id, 1, n=600).SerializeToString()) > typed.THREAD_BYTES
    assert len(logprobs(await model.gradient(n=600))) == 4800


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (PROTOBUF, b"\x1a\x00" * 300_000),
        (PROTOBUF, b"\xff\xff\xff"),
        (PROTOBUF, b""),
        (PROTOBUF, gradient("", 1).SerializeToString()),
        (PROTOBUF, gradient("s-0:train:0", 0).SerializeToString()),
        ({"Content-Type": "application/json"}, b"{"),
        ({"Content-Type": "application/json"}, b"[]"),
        ({"Content-Type": "application/json"}, b'{"model_id": "a", "seq_id": 1}'),
    ],
)
async def test_bodies_that_say_nothing_are_refused(
    fake_door: Door, headers: dict, body: bytes
) -> None:
    http = (await fake_door.session()).http
    refused = await http.post("/api/v1/forward_backward", content=body, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"]


async def test_the_json_of_older_clients(door: Door) -> None:
    model = await (await door.session()).model()
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": list(range(10, 18))}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": list(range(11, 19)), "dtype": "int64", "shape": [8]},
            "weights": {"data": [0, 0, 1, 1, 1, 1, 1, 1], "dtype": "float32", "shape": [8]},
        },
    }
    asked = {"data": [datum], "loss_fn": "cross_entropy"}
    promise = await ok(model.send("forward_backward", forward_backward_input=asked))
    answer = await model.session.post("retrieve_future", request_id=promise["request_id"])
    told = answer.json()
    assert told["loss_fn_output_type"] == "ArrayRecord"
    scored = await ok(model.send("forward", forward_input=asked))
    same = (await model.session.post("retrieve_future", request_id=scored["request_id"])).json()
    rows = [t["loss_fn_outputs"][0]["logprobs"] for t in (told, same)]
    assert rows[0]["shape"] == [8]
    assert rows[0]["data"] == pytest.approx(rows[1]["data"], abs=1e-5)
    assert rows[0]["data"] == pytest.approx(logprobs(await model.gradient()), abs=1e-5)


async def test_keys_that_are_not_known_are_let_by(door: Door) -> None:
    one = await door.session()
    model = await one.model(
        of_tomorrow={"a": [1]}, lora_config={"rank": 2, "dropout": 0.1, "train_unembed": False}
    )
    step = await model.carry_out("optim_step", adam_params={"learning_rate": 0.1, "rho": 2}, hint=1)
    assert "metrics" in step


async def test_foreign_models_are_unknown(door: Door) -> None:
    model = await (await door.session("alice")).model()
    other = await door.session("bob")
    for path, body in (
        ("optim_step", {"seq_id": 1}),
        ("save_weights", {"seq_id": 1}),
        ("get_info", {}),
    ):
        refused = await other.post(path, model_id=model.model_id, **body)
        assert refused.status_code == 404, path
    refused = await other.http.post(
        "/api/v1/forward_backward",
        content=gradient(model.model_id, 1).SerializeToString(),
        headers=PROTOBUF,
    )
    assert refused.status_code == 404
    asked = {"request_id": f"{model.model_id}:0"}
    assert (await other.post("retrieve_future", **asked)).status_code == 404
    assert (await model.step())["metrics"], "nothing of hers was used up"


async def test_a_refused_body_of_a_foreign_model_uses_up_nothing(door: Door) -> None:
    model = await (await door.session("alice")).model()
    other = await door.session("bob")
    body = {"model_id": model.model_id, "seq_id": 1, "adam_params": 5}
    refused = await other.http.post("/api/v1/optim_step", content=json.dumps(body))
    assert refused.status_code == 400
    assert (await model.step())["metrics"]


async def test_gradients_come_compressed(door: Door) -> None:
    model = await (await door.session()).model()
    raw = gradient(model.model_id, 1).SerializeToString()
    packed = zstandard.ZstdCompressor().compress(raw)
    headers = {**PROTOBUF, "Content-Encoding": "zstd"}
    promise = await model.session.http.post(
        "/api/v1/forward_backward", content=packed, headers=headers
    )
    assert logprobs(await model.session.result(await ok(promise)))
