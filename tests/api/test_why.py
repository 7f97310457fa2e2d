"""Why a client's model waits, told while it cannot even be made, and where a request is missing."""

from pathlib import Path
from typing import Any

from edge_support import edge, until
from httpx import AsyncClient


async def post(client: AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def model(client: AsyncClient, session_id: str, number: int, base: Path) -> str:
    lora = {"rank": 4, "train_unembed": False}
    asked = {"session_id": session_id, "model_seq_id": number, "base_model": str(base)}
    return (await post(client, "create_model", **asked, lora_config=lora))["model_id"]


async def test_why_a_model_is_not_made(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice, bob = await e.tenant("alice", runs=1), await e.tenant("bob")
        session_id = (await post(alice, "create_session"))["session_id"]
        first = await model(alice, session_id, 0, byte_model)
        await post(alice, "retrieve_future", request_id=f"{first}:0")
        second = await model(alice, session_id, 1, byte_model)

        async def waits() -> bool:
            why = (await alice.get(f"/v1/runs/{second}/why")).json()
            told = "1 of 1 runs" in why["reason"] and "position 1" in why["reason"]
            return told and (why["waiting_for"], why["position"]) == ("place", 1)

        await until(waits)
        assert (await bob.get(f"/v1/runs/{second}/why")).status_code == 404
        assert (await alice.get(f"/v1/runs/{session_id}:train:9/why")).status_code == 404


async def test_a_request_that_is_missing_is_named(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        session_id = (await post(alice, "create_session"))["session_id"]
        made = await model(alice, session_id, 0, byte_model)
        await post(alice, "retrieve_future", request_id=f"{made}:0")
        await post(alice, "optim_step", model_id=made, seq_id=3)
        waiting = await e.house.requests.outcome(
            e.access.caller(alice.headers["Authorization"].removeprefix("Bearer ")),
            f"{made}:3",
            wait_s=0.0,
        )
        assert "request 1 has not come" in waiting.reason  # type: ignore[union-attr]
        why = (await alice.get(f"/v1/runs/{made}/why")).json()
        assert (why["waiting_for"], "request 1" in why["reason"]) == ("request", True)
