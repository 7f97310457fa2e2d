"""App: health, keys, errors' shape, through the whole edge."""

from pathlib import Path

from edge_support import edge

from plait.core.ids import TenantId

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
