"""Custom losses through the door: created, named by a gradient, refused, and nobody else's."""

from typing import Any

import custom_support
import numpy as np
import pytest
from custom_support import SUM, by_hand, node, ref, told
from tinker_support import PROTOBUF, Door, Model, Session, gradient, logprobs, ok, put

PPO = {"logprobs": 1, "sampled": 1, "advantages": 1}
SAMPLED = np.linspace(-6, -5, 8, dtype="<f4")
ADVANTAGES = np.array([0, 0, 1, -1, 1, 1, -2, 1], "<f4")


async def send(session: Session, loss: Any, number: int = 0, **over: Any) -> Any:
    return await session.post(
        "create_custom_loss",
        **{"session_id": session.session_id, "custom_loss_seq_id": number, **loss, **over},
    )


async def create(session: Session, loss: Any, number: int = 0) -> str:
    """A loss's id."""
    made = await session.result(await ok(await send(session, loss, number)))
    assert made["type"] == "create_custom_loss"
    loss_id: str = made["loss_id"]
    return loss_id


async def learn(model: Model, loss_id: str, seq: int | None = None, **how: Any) -> Any:
    """A gradient by a loss, and what became of it."""
    seq = model.number() if seq is None else seq
    message = gradient(model.model_id, seq, loss="custom", **how)
    message.loss_fn_config_v2["loss_id"].text = loss_id
    for datum in message.data:
        put(datum, "sampled", SAMPLED)
        put(datum, "advantages", ADVANTAGES)
    promise = await ok(
        model.session.http.post(
            "/api/v1/forward_backward", content=message.SerializeToString(), headers=PROTOBUF
        )
    )
    return await model.session.result(promise)


async def test_a_model_learns_by_a_loss_of_ones_own(door: Door) -> None:
    one = await door.session()
    model = await one.model()
    loss_id = await create(one, told(custom_support.ppo, PPO))
    scored = await model.gradient(forward=True, n=2)
    out = await learn(model, loss_id, n=2)
    assert logprobs(out) == pytest.approx(logprobs(scored), abs=1e-5)
    assert set(out.metrics) == {
        "loss:sum",
        "tokens:sum",
        "custom/loss:sum",
        "custom/kl:mean",
        "custom/clip_fraction:mean",
    }
    ratios = np.exp(np.array(logprobs(scored)).reshape(2, 8) - SAMPLED)
    terms = np.minimum(ratios * ADVANTAGES, np.clip(ratios, 0.8, 1.2) * ADVANTAGES)
    assert out.metrics["loss:sum"] == pytest.approx(-terms.sum(), rel=1e-4)
    assert out.metrics["custom/loss:sum"] == pytest.approx(out.metrics["loss:sum"], rel=1e-5)
    assert (await model.step())["metrics"]["grad_norm:mean"] > 0
    after = await learn(model, loss_id, n=2)
    assert after.metrics["loss:sum"] != pytest.approx(out.metrics["loss:sum"])


async def test_the_same_number_again_is_the_same_loss(door: Door) -> None:
    one = await door.session()
    first = await create(one, told(custom_support.ppo, PPO), 3)
    assert await create(one, by_hand(SUM), 3) == first, "whatever came under its number"
    assert await create(one, by_hand(SUM), 4) != first
    out = await learn(await one.model(), first)
    assert "custom/loss:sum" in out.metrics, "the original"


async def test_a_loss_is_its_sessions_alone(door: Door) -> None:
    alice, bob = await door.session(), await door.session("bob")
    again = await door.session()
    loss_id = await create(alice, by_hand(SUM))
    for other in (bob, again):
        model = await other.model()
        failed = await learn(model, loss_id)
        assert failed["category"] == "user"
        assert "there is no custom loss" in failed["error"]
        assert logprobs(await model.gradient()), "the next number is not held up"
    polled = await bob.post("retrieve_future", request_id=loss_id, allow_metadata_only=False)
    assert polled.status_code == 404
    theirs = await send(bob, by_hand(SUM), session_id=alice.session_id)
    assert theirs.status_code == 404


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (by_hand(node("a", "os.system", "sum"), SUM), "os.system"),
        (by_hand(node("a", "item", ref("logprobs"), op="call_method"), SUM), "item"),
        ({**by_hand(SUM), "inputs": []}, "list of 1 to 16"),
        (by_hand(SUM, metrics={"kl": "loss"}), "custom/NAME:sum"),
        ({**by_hand(SUM), "graph": {"format": 2, "nodes": []}}, "reads format 1"),
    ],
)
async def test_a_graph_that_is_wrong_is_refused_at_once(door: Door, loss: Any, why: str) -> None:
    one = await door.session()
    refused = await send(one, loss)
    assert refused.status_code == 400
    assert why in refused.json()["error"]["message"]
    assert await create(one, by_hand(SUM)), "the number is unused"


@pytest.mark.parametrize(
    "over",
    [
        {"session_id": 5},
        {"custom_loss_seq_id": -1},
        {"custom_loss_seq_id": 2**31},
        {"inputs": {}},
        {"inputs": [{"name": "logprobs"}]},
        {"graph": None},
        {"graph": {"format": 1, "nodes": {}}},
        {"graph": {"format": 1, "nodes": [1]}},
        {"name": None},
    ],
)
async def test_a_body_that_is_wrong_is_refused(door: Door, over: dict[str, Any]) -> None:
    refused = await send(await door.session(), by_hand(SUM), **over)
    assert refused.status_code in (400, 422), refused.text


async def test_a_session_that_is_over_takes_none(door: Door) -> None:
    one = await door.session()
    await ok(one.post(f"sessions/{one.session_id}/finish", reason={"type": "success"}))
    assert (await send(one, by_hand(SUM))).status_code == 410


WRONG_NOW = {
    "no gradient of one number": (
        by_hand(node("loss", "torch.exp", ref("logprobs"))),
        "one number",
    ),
    "an index out of range": (
        by_hand(node("a", "operator.getitem", ref("logprobs"), 99), {**SUM, "args": [ref("a")]}),
        "a (operator.getitem)",
    ),
    "another rank": (by_hand(SUM, rank=2), "rank"),
    "numbers that run away": (
        by_hand(node("a", "operator.truediv", ref("logprobs"), 0.0), {**SUM, "args": [ref("a")]}),
        "not finite",
    ),
}


@pytest.mark.parametrize("case", WRONG_NOW)
async def test_what_is_wrong_for_some_data_fails_that_gradient_alone(door: Door, case: str) -> None:
    loss, why = WRONG_NOW[case]
    one = await door.session()
    model = await one.model()
    failed = await learn(model, await create(one, loss))
    assert failed["category"] == "user"
    assert why in failed["error"]
    assert logprobs(await model.gradient())
    assert (await model.step())["metrics"]["grad_norm:mean"] > 0


@pytest.mark.parametrize("loss_id", ["", "pop", "s-0:loss:1", "s-00000000:loss:0"])
async def test_a_loss_that_there_is_not_fails_the_gradient(door: Door, loss_id: str) -> None:
    model = await (await door.session()).model()
    failed = await learn(model, loss_id)
    assert failed["category"] == "user"
    assert (await model.step())["metrics"]


async def test_a_loss_is_for_gradients_and_has_no_other_option(door: Door) -> None:
    one = await door.session()
    model, loss_id = await one.model(), await create(one, by_hand(SUM))
    failed = await learn(model, loss_id, forward=True)
    assert "a forward pass knows no custom loss" in failed["error"]
    message = gradient(model.model_id, model.number(), loss="custom")
    message.loss_fn_config_v2["loss_id"].text = loss_id
    message.loss_fn_config_v2["beta"].number = 1.0
    promise = await ok(
        one.http.post(
            "/api/v1/forward_backward", content=message.SerializeToString(), headers=PROTOBUF
        )
    )
    assert "takes one option" in (await one.result(promise))["error"]


async def test_values_that_are_no_numbers_may_be_read(door: Door) -> None:
    """A mask of infinities is the loss's own affair, as it is on the client's side."""
    one = await door.session()
    model = await one.model()

    def masked(logprobs, bias):
        import torch

        return torch.where(bias == 0, logprobs, torch.zeros_like(logprobs)).sum(), {}

    loss_id = await create(one, told(masked, {"logprobs": 1, "bias": 1}))
    message = gradient(model.model_id, model.number(), loss="custom")
    message.loss_fn_config_v2["loss_id"].text = loss_id
    put(message.data[0], "bias", np.array([0, 0, 0, 0, -np.inf, np.nan, 0, 0], "<f4"))
    promise = await ok(
        one.http.post(
            "/api/v1/forward_backward", content=message.SerializeToString(), headers=PROTOBUF
        )
    )
    out = await one.result(promise)
    kept = [x for i, x in enumerate(logprobs(out)) if i not in (4, 5)]
    assert out.metrics["loss:sum"] == pytest.approx(sum(kept), rel=1e-5)
