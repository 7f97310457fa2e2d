"""Sampling through the door: samplers, samples, and polls for them."""

import asyncio
import math

import numpy as np
import pytest
from fake_house import FakeHouse
from tinker_support import READS_PROTOBUF, Door, ok

from plait.service.ports import CLONE, Waiting
from plait.service.tinker_api import futures


def tokens(out) -> list[list[int]]:
    return [np.frombuffer(s.tokens, "<i4").tolist() for s in out.sequences]


async def test_a_base_model_is_sampled(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    assert (await one.get(f"samplers/{sampler}"))["base_model"] == door.base_model
    promise = await ok(one.sample(sampler, num_samples=2))
    assert len(set(promise["sample_sequence_ids"])) == 2
    out = await one.result(promise)
    assert [len(row) for row in tokens(out)] == [4, 4]
    assert tokens(out)[0] != tokens(out)[1], "one seed, samples that differ"
    again = await one.result(await ok(one.sample(sampler, 1, num_samples=2)))
    assert tokens(again) == tokens(out), "and the same set when asked again"
    assert await ok(one.sample(sampler, num_samples=2)) == promise, "one number, one request"


async def test_a_snapshot_stays_what_it_was(door: Door) -> None:
    model = await (one := await door.session()).model()
    made = await model.carry_out("save_weights_for_sampler", sampling_session_seq_id=0)
    sampler = made["sampling_session_id"]
    assert sampler == f"{one.session_id}:sample:0"
    before = await one.result(await ok(one.sample(sampler, prompt_logprobs=True)))
    for _ in range(3):
        await model.gradient()
        await model.step()
    named = await model.carry_out("save_weights_for_sampler", path="later")
    later = await one.sampler(model_path=named["path"])
    after = await one.result(await ok(one.sample(sampler, 1, prompt_logprobs=True)))
    moved = await one.result(await ok(one.sample(later, 0, prompt_logprobs=True)))
    rows = [
        np.frombuffer(out.prompt_logprobs, "<f4")[1:].tolist() for out in (before, after, moved)
    ]
    assert rows[0] == pytest.approx(rows[1], abs=1e-6)
    assert rows[0] != pytest.approx(rows[2], abs=1e-3)


async def test_the_prompt_is_scored(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    asked = {"prompt_logprobs": True, "topk_prompt_logprobs": 2, "topk_sample_logprobs": 3}
    out = await one.result(await ok(one.sample(sampler, **asked)))
    row = np.frombuffer(out.prompt_logprobs, "<f4").tolist()
    assert math.isnan(row[0])
    assert all(value < 0 for value in row[1:])
    assert (out.topk_prompt_logprobs.length, out.topk_prompt_logprobs.k) == (4, 2)
    ranked = out.sequences[0].topk_sampled_logprobs
    assert (ranked.length, ranked.k) == (4, 3)
    alone = await one.result(await ok(one.sample(sampler, 1, topk_prompt_logprobs=2)))
    assert alone.topk_prompt_logprobs == out.topk_prompt_logprobs
    assert not alone.prompt_logprobs


async def test_what_cannot_be_sampled_is_refused_at_once(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    refused = await one.sample(sampler, topk_sample_logprobs=99)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"]
    assert (await one.sample(sampler, num_samples=0)).status_code == 422
    assert (await one.sample(f"{one.session_id}:sample:9")).status_code == 404
    gone = f"tinker://{one.session_id}:train:0/sampler_weights/gone"
    for of in ({"base_model": "none"}, {"model_path": gone}, {}):
        refused = await one.post(
            "create_sampling_session",
            session_id=one.session_id,
            sampling_session_seq_id=1,
            **of,
        )
        assert refused.status_code == (404 if of else 400), refused.text


async def test_a_number_above_the_vocabulary_fails_the_request(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    prompt = {"chunks": [{"tokens": [10**6]}]}
    answer = await one.post(
        "asample",
        sampling_session_id=sampler,
        seq_id=0,
        prompt=prompt,
        sampling_params={"max_tokens": 1},
    )
    if answer.status_code == 200:
        assert (await one.result(answer.json()))["category"] == "user"
    else:
        assert answer.status_code == 400


async def test_samples_are_announced_in_one_poll(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    promises = [await ok(one.sample(sampler, seq)) for seq in (0, 1)]
    theirs = await ok(one.sample(sampler, 3 * CLONE))
    wanted, cursor = {p["request_id"] for p in promises}, 0
    while wanted:
        told = await ok(
            one.post(
                "retrieve_futures",
                target={"type": "sampling_session", "sampling_session_id": sampler},
                prev_cursor=cursor,
            )
        )
        assert told["cursor"] >= cursor
        cursor = told["cursor"]
        for completion in told["completions"]:
            assert completion["state"] == "finished"
            wanted.remove(completion["request_id"])
            out = await one.result(completion)
            assert completion["response_payload_uncompressed_size"] == out.ByteSize()
    clone = await ok(
        one.post(
            "retrieve_futures",
            target={"sampling_session_id": sampler, "cloned_sampler_id": 3},
            timeout=5,
        )
    )
    assert [c["request_id"] for c in clone["completions"]] == [theirs["request_id"]]


async def test_copies_of_a_client_get_numbers(door: Door) -> None:
    one = await door.session()
    sampler = await one.sampler()
    joined = [
        await ok(one.post("join_sampling_session", sampling_session_id=sampler)) for _ in "ab"
    ]
    assert [told["client_counter"] for told in joined] == [1, 2]


async def test_foreign_samplers_are_unknown(door: Door) -> None:
    one, other = await door.session("alice"), await door.session("bob")
    sampler = await one.sampler()
    promise = await ok(one.sample(sampler))
    assert (await other.sample(sampler)).status_code == 404
    assert (await other.http.get(f"/api/v1/samplers/{sampler}")).status_code == 404
    assert (
        await other.post("join_sampling_session", sampling_session_id=sampler)
    ).status_code == 404
    asked = {"request_id": promise["request_id"]}
    assert (await other.post("retrieve_future", **asked)).status_code == 404
    target = {"sampling_session_id": sampler}
    assert (await other.post("retrieve_futures", target=target)).status_code == 404


async def test_a_sample_that_waits_says_why(fake: FakeHouse, fake_door: Door) -> None:
    one = await fake_door.session()
    sampler = await one.sampler()
    request_id = f"{sampler}:0:{fake.boot}"
    reason = "third of 5 in line: the machine is full"
    fake.held[request_id] = Waiting(state="paused_capacity", reason=reason)
    promise = await ok(one.sample(sampler))
    told = await ok(one.post("retrieve_future", request_id=promise["request_id"]))
    assert told == {
        "type": "try_again",
        "request_id": request_id,
        "queue_state": "paused_capacity",
        "queue_state_reason": reason,
    }
    await ok(one.post("cancel_future", request_id=request_id))
    ended = await ok(one.post("retrieve_future", request_id=request_id))
    assert ended == {"error": "cancelled", "category": "user"}


async def test_a_poll_is_held_and_comes_back(
    fake: FakeHouse, fake_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(futures, "HOLD_S", 0.05)
    model = await (await fake_door.session()).model()
    late = await ok(model.send("optim_step", seq=2))
    told = await ok(model.session.post("retrieve_future", request_id=late["request_id"]))
    assert (told["type"], told["queue_state"]) == ("try_again", "active")
    monkeypatch.setattr(futures, "HOLD_S", 30.0)
    poll = asyncio.create_task(model.session.result(late))
    await model.gradient(seq=1)
    assert "metrics" in await poll, "what was waited for comes as soon as it is there"


def test_polls_end_before_the_client_gives_up() -> None:
    assert futures.HOLD_S < 40


async def test_samples_of_an_earlier_life_are_lost(fake: FakeHouse, fake_door: Door) -> None:
    one = await fake_door.session()
    sampler = await one.sampler()
    promise = await ok(one.sample(sampler))
    fake.boot = "b2"
    lost = await one.post("retrieve_future", request_id=promise["request_id"])
    assert lost.status_code == 410


async def test_large_answers_are_announced_to_those_who_ask(
    fake_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(futures, "INLINE_BYTES", 100)
    model = await (await fake_door.session()).model()
    promise = await ok(model.data(n=8))
    asked = {"request_id": promise["request_id"]}
    told = await ok(model.session.post("retrieve_future", allow_metadata_only=True, **asked))
    whole = await model.session.http.post(
        "/api/v1/retrieve_future", json=asked, headers=READS_PROTOBUF
    )
    assert told == {
        "status": "complete_metadata",
        "response_payload_size": len(whole.content),
    }
    step = await ok(model.send("optim_step"))
    small = await ok(
        model.session.post(
            "retrieve_future", request_id=step["request_id"], allow_metadata_only=True
        )
    )
    assert "metrics" in small


async def test_requests_that_never_were_are_unknown(door: Door) -> None:
    model = await (await door.session()).model()
    for request_id in (f"{model.model_id}:99", "nonsense", "s-0:train:0:1", "s-0:sample:0:1:x"):
        answer = await model.session.post("retrieve_future", request_id=request_id)
        assert answer.status_code in (404, 410), request_id
