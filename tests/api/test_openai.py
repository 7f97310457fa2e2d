"""The OpenAI API, spoken to by OpenAI's own client over a socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai_support import Served, chatty, served
from service_support import ALICE, SOON_S, Client

from plait.core.errors import EngineError
from plait.core.ids import JobId
from plait.models.tokenizer import Tokenizer
from plait.rewards.judge import Judge
from plait.service.names import run_of
from plait.service.work import CheckpointKind, Kind, SaveCheckpoint

HELLO: Any = [{"role": "user", "content": "hello"}]
SLOW = "slow_engine:build"
pytestmark = pytest.mark.usefixtures("engine_path")


@pytest.fixture
async def model(tmp_path: Path, byte_model: Path) -> str:
    return str(chatty(tmp_path, byte_model))


@pytest.fixture
async def service(tmp_path: Path, model: str) -> AsyncIterator[Served]:
    async with served(tmp_path / "house", Path(model)) as s:
        yield s


async def chat(client: openai.AsyncOpenAI, model: str, **over: Any) -> Any:
    asked = {"model": model, "messages": HELLO, "max_tokens": 12, "seed": 3, **over}
    return await client.chat.completions.create(**asked)


async def test_a_chat_is_answered_and_the_same_seed_draws_the_same(
    service: Served, model: str
) -> None:
    client = service.client()
    first = await chat(client, model, n=3)
    again = await chat(client, model, n=3)
    texts = [c.message.content for c in first.choices]
    assert texts == [c.message.content for c in again.choices]
    assert len(set(texts)) == 3, "n samples of one seed are distinct"
    assert [c.index for c in first.choices] == [0, 1, 2]
    assert {c.finish_reason for c in first.choices} <= {"stop", "length"}
    assert first.usage is not None
    assert first.usage.prompt_tokens == len(b"<user>hello\n<assistant>")
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert first.system_fingerprint == model
    other = await chat(client, model, n=3, seed=4)
    assert texts != [c.message.content for c in other.choices]
    unseeded = [await chat(client, model, seed=None) for _ in range(4)]
    assert len({c.choices[0].message.content for c in unseeded}) > 1


async def test_streamed_pieces_are_the_whole(tmp_path: Path, model: str) -> None:
    async with served(tmp_path / "house", Path(model), engine=SLOW) as service:
        client = service.client()
        asked = {"n": 2, "max_tokens": 50, "logprobs": True, "top_logprobs": 2}
        whole = await chat(client, model, **asked)
        stream = await chat(
            client, model, **asked, stream=True, stream_options={"include_usage": True}
        )
        texts, tokens, reasons, n_pieces = ["", ""], [0, 0], [None, None], 0
        usage = None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                n_pieces += 1
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
                if choice.logprobs:
                    tokens[choice.index] += len(choice.logprobs.content or [])
        assert texts == [c.message.content for c in whole.choices]
        assert reasons == [c.finish_reason for c in whole.choices]
        assert tokens == [len(c.logprobs.content) for c in whole.choices]
        assert usage == whole.usage
        assert n_pieces > 6, "in pieces, not all at the end"


async def test_logprobs_of_a_chat(service: Served, model: str) -> None:
    reply = await chat(service.client(), model, logprobs=True, top_logprobs=3)
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    for token in content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob >= token.logprob
    plain = await chat(service.client(), model)
    assert plain.choices[0].logprobs is None


async def test_a_stop_string_ends_the_text_and_is_no_part_of_it(tmp_path: Path, model: str) -> None:
    async with served(tmp_path / "house", Path(model), engine=SLOW) as service:
        client = service.client()
        whole = (await chat(client, model, max_tokens=40)).choices[0].message.content
        stop = whole[10:13]
        at = whole.index(stop)
        cut = (await chat(client, model, max_tokens=40, stop=[stop, "never"])).choices[0]
        assert (cut.message.content, cut.finish_reason) == (whole[:at], "stop")
        stream = await chat(client, model, max_tokens=40, stop=stop, stream=True)
        pieces = [c.choices[0].delta.content or "" async for c in stream]
        assert "".join(pieces) == whole[:at]
        assert all(stop not in p for p in pieces)


async def test_plain_completions_of_texts_and_tokens(service: Served, model: str) -> None:
    client = service.client()
    one = await client.completions.create(model=model, prompt="abc", max_tokens=5, seed=1)
    ids = await client.completions.create(
        model=model,
        prompt=[97 - 33, 98 - 33, 99 - 33],  # the byte alphabet begins at "!"
        max_tokens=5,
        seed=1,
        extra_body={"return_token_ids": True},
    )
    extra = ids.choices[0].model_extra
    assert extra is not None
    assert len(extra["token_ids"]) == 5
    assert extra["prompt_token_ids"] == [64, 65, 66]
    assert ids.choices[0].text == one.choices[0].text, "tokens in are tokens in"
    many = await client.completions.create(
        model=model, prompt=["abc", "xyz"], n=2, max_tokens=5, seed=1
    )
    assert [c.index for c in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == one.choices[0].text
    stream = await client.completions.create(
        model=model, prompt=["abc", "xyz"], n=2, max_tokens=5, seed=1, stream=True
    )
    texts = dict.fromkeys(range(4), "")
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [c.text for c in many.choices]


async def test_echo_scores_a_prompt(service: Served, model: str) -> None:
    client = service.client()
    scored = await client.completions.create(
        model=model, prompt="abcd", max_tokens=0, echo=True, logprobs=2
    )
    choice = scored.choices[0]
    assert choice.text == "abcd"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "c", "d"]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]
    logprobs: Any = choice.logprobs.token_logprobs
    assert logprobs[0] is None
    assert all(p < 0 for p in logprobs[1:])
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0
    both = await client.completions.create(
        model=model, prompt="abcd", max_tokens=3, echo=True, logprobs=0, seed=1
    )
    assert both.choices[0].text.startswith("abcd")
    assert both.choices[0].logprobs is not None
    assert both.choices[0].logprobs.token_logprobs is not None
    assert both.choices[0].logprobs.token_logprobs[:4] == logprobs
    assert len(both.choices[0].logprobs.token_logprobs) == 7


async def test_runs_versions_and_checkpoints_by_name(service: Served, model: str) -> None:
    house = service.edge.house
    one = await Client.open(house)
    await one.create(model)
    await one.gradient(1)
    await one.get(await one.step())
    save = SaveCheckpoint(name="best", kind=CheckpointKind.SAMPLER)
    path = (await one.get(await one.send(Kind.SAVE_SAMPLER, save))).path
    await one.gradient(2)
    await one.get(await one.step())
    alice = service.client(await service.key_of(ALICE.tenant_id))
    names = [m.id async for m in alice.models.list()]
    run = one.model_id
    assert {model, f"{run}@latest", f"{run}@2", f"{run}@sampler_weights/best"} <= set(names)
    answers = {}
    names = [model, f"{run}@latest", f"{run}@1", f"{run}@2", path, f"{run}@sampler_weights/best"]
    for name in names:
        reply = await chat(alice, name, n=4)
        answers[name] = reply.choices[0].message.content + reply.choices[1].message.content
        assert reply.model == name
    assert answers[f"{run}@latest"] == answers[f"{run}@2"]
    assert answers[path] == answers[f"{run}@1"] == answers[f"{run}@sampler_weights/best"]
    assert len(set(answers.values())) == 3
    fingerprint = (await chat(alice, f"{run}@latest")).system_fingerprint
    assert fingerprint == f"{run}@2"
    assert (await alice.models.retrieve(f"{run}@latest")).id == f"{run}@latest"

    stranger = service.client(await service.key_of("mallory"))
    assert [m.id async for m in stranger.models.list()] == [model]
    for name in (
        f"{run}@latest",
        path,
        f"{run}@99",
        "nothing",
        "nothing@latest",
        "@",
        "tinker://x",
    ):
        for client in (stranger,) if name in (f"{run}@latest", path) else (stranger, alice):
            with pytest.raises(openai.NotFoundError) as found:
                await chat(client, name)
            assert found.value.code == "model_not_found"
            assert found.value.param == "model"
    with pytest.raises(openai.NotFoundError, match="there are latest"):
        await chat(alice, f"{run}@99")


REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"tools": [{"type": "function"}]}, "tools", "tools are not served"),
    ({"functions": [{}]}, "functions", "functions are not served"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "role"),
    ({"presence_penalty": 0.5}, "presence_penalty", "penalties are not served"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "logit_bias is not served"),
    ({"response_format": {"type": "json_object"}}, "response_format", "text is served"),
    ({"temperature": -1}, "temperature", "greater than or equal"),
    ({"top_logprobs": 2}, None, "top_logprobs goes with logprobs"),
    ({"n": 0}, "n", "greater than or equal"),
    ({"surprise": 1}, "surprise", "surprise is not known here"),
    ({"max_tokens": 10_000}, None, "together at most 256 fit here"),
    ({"messages": []}, "messages", "at least 1"),
]


async def test_a_text_that_cannot_fit_is_refused_unread(
    service: Served, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splitting megabytes into tokens would hold everybody up."""

    def read(*_: Any) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr(Tokenizer, "encode", read)
    monkeypatch.setattr(Tokenizer, "chat", read)
    client, text = service.client(), "x" * 100_000
    with pytest.raises(openai.BadRequestError, match="256 tokens fit here") as found:
        await client.completions.create(model=model, prompt=["a", text])
    assert found.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="256 tokens fit here"):
        await chat(client, model, messages=[{"role": "user", "content": text}])


async def test_a_name_that_two_jobs_have_is_listed_once(service: Served, model: str) -> None:
    house = service.edge.house
    ids = []
    for number in (1, 2):
        client = await Client.open(house)
        await client.create(model)
        await client.gradient(number)
        await client.get(await client.step())
        ids.append(client.model_id)
        job = JobId(run_of(client.model_id))
        house.store.jobs.submit(
            job, tenant_id=ALICE.tenant_id, name="sums", spec={}, now=float(number)
        )
    alice = service.client(await service.key_of(ALICE.tenant_id))
    names = [m.id async for m in alice.models.list()]
    assert len(set(names)) == len(names)
    assert {"sums@latest", f"{ids[0]}@latest"} <= set(names)
    newest = (await chat(alice, "sums@latest")).system_fingerprint
    assert newest == (await chat(alice, f"{ids[1]}@latest")).system_fingerprint


async def test_of_a_field_of_several_shapes_the_one_meant_is_told(
    service: Served, model: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=r"stop: List should have at most 16") as found:
        await chat(service.client(), model, stop=["a"] * 17)
    assert found.value.param == "stop"


async def test_what_is_not_served_is_refused_with_the_field(service: Served, model: str) -> None:
    for body, param, message in REFUSED:
        with pytest.raises(openai.BadRequestError, match=message) as found:
            await chat(service.client(), model, extra_body=body)
        assert found.value.param == param
        assert found.value.type == "invalid_request_error"


async def test_a_wrong_key_is_an_authentication_error(service: Served, model: str) -> None:
    with pytest.raises(openai.AuthenticationError):
        await chat(service.client("tml-wrong"), model)


async def test_a_client_that_goes_takes_its_samples_with_it(tmp_path: Path, model: str) -> None:
    async with served(tmp_path / "house", Path(model), engine=SLOW) as service:
        lane = await service.edge.house.lane(model)
        body = {"model": model, "messages": HELLO, "n": 8, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {service.key}"}
        url = f"{service.url}/v1/chat/completions"
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(url, json=body, headers=headers, timeout=0.5)
            async with client.stream(
                "POST", url, json={**body, "stream": True}, headers=headers
            ) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith("data:"):
                        break
        async with asyncio.timeout(SOON_S):  # it is told at the server's leisure
            while lane._n_flying or len(lane):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_an_error_after_the_first_piece_is_raised_by_the_client(
    tmp_path: Path, model: str
) -> None:
    async with served(tmp_path / "house", Path(model), engine=SLOW) as service:
        stream = await chat(service.client(), model, max_tokens=100, stream=True)
        lane = await service.edge.house.lane(model)
        launch = service.edge.house.launched(model)
        assert launch is not None
        pieces = aiter(stream)
        await anext(pieces)
        launch.session.head.samples.drop_guests(EngineError("out of memory"))
        with pytest.raises(openai.APIError, match="out of memory"):
            [piece async for piece in pieces]
        assert lane._n_flying == 0


async def test_plaits_own_judge_can_point_at_it(
    service: Served, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", service.key)
    config = {"base_url": f"{service.url}/v1", "model": model, "api_key_env": "JUDGE_KEY"}
    async with Judge(**config, max_tokens=8) as judge:
        outcomes = await judge.score(["2 + 2"], ["4"], {"answer": ["4"]})
    # What a toy model writes is hardly a verdict: the judge has read it and says so.
    assert outcomes[0].value is not None or "the judge gave" in str(outcomes[0].error)


async def test_bodies_of_bytes_and_numbers_that_are_none_are_refused(
    service: Served, model: str
) -> None:
    headers = {"Authorization": f"Bearer {service.key}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=service.url, headers=headers) as client:
        for content in (b"", b"{", b"[]", b"null", b'{"model": 1}', b'{"temperature": NaN}'):
            reply = await client.post("/v1/chat/completions", content=content)
            assert 400 <= reply.status_code < 500, content
            assert reply.json()["error"]["message"]
        body = {"model": model, "messages": HELLO, "max_tokens": 4, "logprobs": True}
        reply = await client.post("/v1/chat/completions", json=body)
        json.loads(reply.text, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
