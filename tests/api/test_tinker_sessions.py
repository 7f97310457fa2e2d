"""Sessions, flags and capabilities through the door."""

import pytest
from fake_house import FakeHouse
from tinker_support import Door, ok

from plait.service.tinker_api.clients import FLAGS


async def test_a_client_learns_what_it_needs(door: Door) -> None:
    one = await door.session()
    flags = await ok(one.post("client/config", sdk_version="0.38.0", of_tomorrow=1))
    assert flags["parallel_fwdbwd_chunks"] is True
    assert flags["pjwt_auth_enabled"] is False
    dynamic = await ok(one.post("client/dynamic_config", sdk_version="0.38.0"))
    assert dynamic["sample_cancel_enabled"] is True
    told = await one.get("get_server_capabilities")
    (model,) = told["supported_models"]
    assert model["model_name"] == door.base_model
    assert model["max_context_length"] == 256
    assert "not published" in told["loss_notes"]["stable_reinforce"]
    assert (await one.get("healthz")) == {"status": "ok"}
    assert await ok(one.post("telemetry", events=[{"event": "x"}], session_id="s")) == {
        "status": "accepted"
    }


async def test_a_tenant_may_have_flags_of_its_own(fake: FakeHouse, fake_door: Door) -> None:
    fake.flags_of["alice"] = {"fwdbwd_max_chunk_len": 8, "sample_cancel_enabled": False}
    alice, bob = await fake_door.session("alice"), await fake_door.session("bob")
    assert (await ok(alice.post("client/config")))["fwdbwd_max_chunk_len"] == 8
    assert (await ok(alice.post("client/dynamic_config")))["sample_cancel_enabled"] is False
    assert (await ok(bob.post("client/config")))["fwdbwd_max_chunk_len"] == FLAGS[
        "fwdbwd_max_chunk_len"
    ]


async def test_a_session_lists_what_was_made_in_it(door: Door) -> None:
    one = await door.session()
    model = await one.model()
    sampler = await one.sampler()
    told = await one.get(f"sessions/{one.session_id}")
    assert told["training_run_ids"] == [model.model_id]
    assert told["sampler_ids"] == [sampler]
    assert one.session_id in (await one.get("sessions"))["sessions"]


async def test_a_finished_session_is_refused_and_stays_as_it_was(door: Door) -> None:
    one = await door.session()
    model, sampler = await one.model(), await one.sampler()
    await ok(one.post("session_heartbeat", session_id=one.session_id))
    finish = f"sessions/{one.session_id}/finish"
    assert (await one.post(finish, reason={"type": "success"})).status_code == 204
    assert (await one.post(finish, reason={"type": "errored"}, detail="no")).status_code == 204
    assert (await one.post("session_heartbeat", session_id=one.session_id)).status_code == 410
    assert (await model.send("optim_step")).status_code == 410
    assert (await one.sample(sampler)).status_code in (404, 410)
    found = await ok(one.post("sessions/search", statuses=[{"type": "client_finished"}]))
    assert [s["session_id"] for s in found["sessions"]] == [one.session_id]
    assert found["sessions"][0]["status"]["reason"] == {"type": "success"}, "the first stays"
    active = await ok(one.post("sessions/search", statuses=[{"type": "active"}]))
    assert active["sessions"] == []


async def test_sessions_are_searched(door: Door) -> None:
    http = await door.client("alice")
    ids = []
    for name, metadata in (("Red fox", {"k": "1"}), ("red Hen", {"k": "2"}), ("", {"k": "1"})):
        body = {"display_name": name, "user_metadata": metadata, "sdk_version": "0"}
        told = await ok(http.post("/api/v1/create_session", json=body))
        ids.append(told["session_id"])

    async def found(**by) -> list[str]:
        told = await ok(http.post("/api/v1/sessions/search", json=by))
        return [session["session_id"] for session in told["sessions"]]

    assert set(await found()) == set(ids)
    assert set(await found(display_name="RED")) == set(ids[:2])
    assert await found(display_name="fox red") == [ids[0]]
    assert set(await found(user_metadata={"k": "1"})) == {ids[0], ids[2]}
    assert await found(session_id=ids[2]) == [ids[2]]
    assert set(await found(session_id=ids[2], display_name="hen")) == {ids[1], ids[2]}
    assert await found(user_metadata={"k": "3"}) == []


async def test_a_search_goes_on_where_its_cursor_stands(fake_door: Door) -> None:
    http = await fake_door.client("alice")
    for _ in range(5):
        await ok(http.post("/api/v1/create_session", json={"sdk_version": "0"}))
    pages, cursor = [], None
    while True:
        told = await ok(http.post("/api/v1/sessions/search", json={"limit": 2, "cursor": cursor}))
        pages.append([session["session_id"] for session in told["sessions"]])
        cursor = told["next_cursor"]
        if cursor is None:
            break
    assert pages == [["s-0004", "s-0003"], ["s-0002", "s-0001"], ["s-0000"]]


async def test_foreign_sessions_are_unknown(door: Door) -> None:
    one, other = await door.session("alice"), await door.session("bob")
    for path, body in (
        ("session_heartbeat", {"session_id": one.session_id}),
        (f"sessions/{one.session_id}/finish", {"reason": {"type": "success"}}),
        ("create_model", {"session_id": one.session_id, "model_seq_id": 0, "base_model": "x"}),
    ):
        assert (await other.post(path, **body)).status_code == 404, path
    assert (await other.http.get(f"/api/v1/sessions/{one.session_id}")).status_code == 404
    assert one.session_id not in (await other.get("sessions"))["sessions"]
    await ok(one.post("session_heartbeat", session_id=one.session_id))


@pytest.mark.parametrize("reason", [{"type": "bored"}, {}, None])
async def test_a_session_ends_for_a_known_reason_only(fake_door: Door, reason) -> None:
    one = await fake_door.session()
    answer = await one.post(f"sessions/{one.session_id}/finish", reason=reason)
    assert answer.status_code == 422


async def test_what_is_not_offered_says_so(door: Door) -> None:
    one = await door.session()
    put = await one.http.put(f"/api/v1/sessions/{one.session_id}/project", json={"project_id": "p"})
    assert put.status_code == 400
    assert "one key for each" in put.json()["error"]["message"]
    assert (await one.get(f"sessions/{one.session_id}/trace_export"))["status"] == "failed"
