"""Large JSON bodies are made in a thread on the doors that take them, and refused as small ones."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from tinker_support import Door, ok

from plait.core.ids import TenantId
from plait.service import auth, errors, openai_api, typed
from plait.service.heavy import Heavy
from plait.service.ports import Who
from plait.service.tinker_api import bodies

LONG = "x" * typed.THREAD_BYTES
WHO = Who(tenant_id=TenantId("alice"))


class Asked(BaseModel, extra="forbid"):
    n: int = 0
    text: str = ""
    numbers: list[int] = []


@pytest.fixture
def made_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which bodies were made."""
    threads: list[int] = []
    real = typed._make

    def noted(*of: Any) -> Any:
        threads.append(threading.get_ident())
        return real(*of)

    monkeypatch.setattr(typed, "_make", noted)
    return threads


def known(app: FastAPI) -> Any:
    """The app, to a caller that the middleware has found."""

    async def with_caller(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, auth.STATE: WHO}, receive, send)

    return with_caller


def over(*routers: APIRouter) -> httpx.AsyncClient:
    app = FastAPI()
    errors.install(app)
    for router in routers:
        app.include_router(router)
    return httpx.AsyncClient(transport=httpx.ASGITransport(known(app)), base_url="http://t")


def echo(path: str, route: type[APIRoute]) -> APIRouter:
    router = APIRouter(route_class=route)

    @router.post(path)
    async def answer(body: Asked) -> dict[str, Any]:
        return {"n": body.n, "length": len(body.text)}

    return router


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with over(echo("/typed", typed.typed(Heavy(1))), echo("/plain", APIRoute)) as client:
        yield client


async def test_a_large_body_is_made_in_a_thread_and_a_small_one_is_not(
    http: httpx.AsyncClient, made_in: list[int]
) -> None:
    told = await ok(http.post("/typed", json={"n": 1, "text": "x"}))
    assert (told, made_in) == ({"n": 1, "length": 1}, [])
    told = await ok(http.post("/typed", json={"n": 2, "text": LONG}))
    assert told == {"n": 2, "length": len(LONG)}
    assert len(made_in) == 1
    assert made_in[0] != threading.get_ident()


@pytest.mark.parametrize(
    "body",
    [
        f'{{"text": "{LONG}", "n": "a", "numbers": [1, "b"]}}',
        f'{{"text": "{LONG}", "other": 1}}',
        f'["{LONG}"]',
        f'{{"text": "{LONG}',
    ],
)
async def test_a_large_body_is_refused_as_a_small_one(
    http: httpx.AsyncClient, body: str, made_in: list[int]
) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    got, want = [
        await http.post(path, content=body, headers=headers) for path in ("/typed", "/plain")
    ]
    assert made_in
    assert got.status_code == want.status_code >= 400
    if got.status_code == 422:
        assert got.json() == want.json()


async def test_a_hundred_thousand_mistakes_are_not_told(http: httpx.AsyncClient) -> None:
    refused = await http.post("/typed", json={"numbers": ["a"] * 100_000})
    assert refused.status_code == 400
    assert "wrong in 100000 places" in refused.text


async def test_prompts_and_their_answers_are_made_in_threads(
    fake_door: Door, made_in: list[int]
) -> None:
    session = await fake_door.session()
    sampler = await session.sampler()
    promise = await ok(
        session.post(
            "asample",
            sampling_session_id=sampler,
            seq_id=0,
            prompt={"chunks": [{"type": "encoded_text", "tokens": [10]}], "more": LONG},
            sampling_params={"max_tokens": 4, "seed": 1},
        )
    )
    assert (await session.result(promise)).sequences
    await ok(session.post("telemetry", session_id="s", events=[{"text": LONG}]))
    target = {"sampling_session_id": sampler}
    await ok(session.post("retrieve_futures", target=target, timeout=0, more=LONG))
    assert len(made_in) == 3
    assert threading.get_ident() not in made_in


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_those_of_the_openai_api_too(path: str, made_in: list[int]) -> None:
    async with over(openai_api.router(None)) as client:  # type: ignore[arg-type] - refused before
        refused = await client.post(path, json={"model": "m", "nothing": LONG})
    assert refused.status_code == 400, refused.text
    assert len(made_in) == 1
    assert made_in[0] != threading.get_ident()


async def test_what_is_numbered_is_made_in_a_thread_if_it_is_large(
    fake_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    real = bodies.read

    def noted(kind: Any, raw: bytes) -> Any:
        threads.append(threading.get_ident())
        return real(kind, raw)

    monkeypatch.setattr(bodies, "read", noted)
    model = await (await fake_door.session()).model()
    threads.clear()
    assert (await model.step())["metrics"]
    assert set(threads) == {threading.get_ident()}, "a small one, as it was sent and carried out"
    await ok(model.send("save_weights", path="a", user_metadata={"long": LONG}))
    assert threads[2] != threading.get_ident()


async def test_a_gradient_of_a_million_lists_is_not_parsed(
    fake_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "any_object", pytest.fail)
    monkeypatch.setattr(bodies, "address", pytest.fail)
    model = await (await fake_door.session()).model()
    refused = await model.send("forward_backward", forward_backward_input={"data": [[]] * 10**6})
    assert (refused.status_code, "parts: send less" in refused.text) == (400, True)
