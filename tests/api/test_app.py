"""App: health, keys, errors' shape, through the whole edge."""

import logging
from pathlib import Path
from typing import Any, NoReturn

import pytest
from edge_support import edge
from pydantic import TypeAdapter

from plait.core.ids import TenantId
from plait.service import redaction

JSON = {"Content-Type": "application/json"}


async def test_health_needs_no_key_and_everything_else_does(
    tmp_path: Path, byte_model: Path
) -> None:
    async with edge(tmp_path, byte_model) as e:
        stranger = e.client(None)
        assert (await stranger.get("/healthz")).json() == {"status": "ok"}
        for key in (None, "tml-wrong", "x" * 600, ""):
            refused = await e.client(key).get("/v1/me")
            assert refused.status_code == 401, key
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["code"] == "unauthorized"
        me = (await e.operator.get("/v1/me")).json()
        assert (me["tenant_id"], me["admin"]) == ("local", True)


async def test_the_first_request_makes_no_routes(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(tmp_path, byte_model) as e:
        made: list[object] = []
        real = TypeAdapter.__init__

        def noted(self: Any, kind: Any, **how: Any) -> None:
            made.append(kind)
            real(self, kind, **how)

        monkeypatch.setattr(TypeAdapter, "__init__", noted)
        for path in ("/v1/jobs", "/api/v1/sessions", "/v1/models", "/v1/nothing"):
            assert (await e.operator.get(path)).status_code in (200, 404)
        assert not made


async def test_both_headers_bear_a_key(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        key = (await e.access.issue(TenantId("local"))).key
        for headers in ({"X-API-Key": key}, {"Authorization": f"bearer {key}"}):
            found = await e.client(None).get("/v1/me", headers=headers)
            assert found.json()["tenant_id"] == "local"
        in_url = await e.client(None).get("/v1/me", params={"api_key": key, "X-API-Key": key})
        assert in_url.status_code == 401


async def test_what_is_not_there_answers_in_one_shape(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        for answer, status in (
            (await e.operator.get("/v1/nothing"), 404),
            (await e.operator.put("/v1/me"), 405),
            (await e.operator.get("/v1/jobs", params={"limit": 0}), 422),
            (await e.operator.post("/v1/keys", content=b"{", headers=JSON), 400),
            (await e.operator.post("/v1/keys", json=[1]), 422),
        ):
            assert answer.status_code == status, answer.text
            assert set(answer.json()["error"]) == {"message", "type", "code", "param"}


async def test_what_was_no_ones_intention_is_told_by_a_number_and_shows_no_secret(
    tmp_path: Path,
    byte_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with redaction.installed():
        async with edge(tmp_path, byte_model) as e:
            key = (await e.access.issue(TenantId("local"))).key
            client = e.client(key)
            for url in (f"/v1/jobs/{key}", f"/v1/{key}?key={key}", f"/v1/runs/{key}/why"):
                await client.get(url, headers={"X-API-Key": key})
            await e.client(f"{key}x").get("/v1/me")
            await client.post("/v1/jobs", json={"file": {key: key}})

            def broken(_tenant_id: TenantId) -> NoReturn:
                raise ValueError(f"the key {key} is bad")

            monkeypatch.setattr(e.access, "tenant", broken)
            answer = await client.get("/v1/me")
            assert answer.status_code == 500
            message = answer.json()["error"]["message"]
            number = message.split()[2].rstrip(":")
    assert key not in answer.text
    assert number in caplog.text, "the log has the rest"
    assert "the key tml-… is bad" in caplog.text
    assert key not in caplog.text
