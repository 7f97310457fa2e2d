"""Accounts: keys shown once, rotated, revoked; tenants; the ledger read back."""

from dataclasses import replace
from pathlib import Path

import pytest
from edge_support import ROWS, edge, job, until
from service_support import ALICE, Client, batch, house

from plait.core.errors import Unauthorized
from plait.core.ids import LOCAL_TENANT, RunId, TenantId
from plait.obs.jsonl import read_jsonl
from plait.service.limits import TenantLimits
from plait.service.work import Kind
from plait.store.usage import Used


async def test_a_key_is_shown_once_and_kept_as_a_hash(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        made = (await e.operator.post("/v1/keys", json={"label": "laptop"})).json()
        assert made["key"].startswith("tml-")
        assert made["key"].startswith(made["prefix"])
        shown = (await e.operator.get("/v1/keys")).text
        assert made["key"] not in shown
        assert made["key_id"] in shown
        assert (await e.client(made["key"]).get("/v1/me")).json()["key_id"] == made["key_id"]
    assert not holding(tmp_path, made["key"].encode())


def holding(directory: Path, secret: bytes) -> list[Path]:
    files = [file for file in directory.rglob("*") if file.is_file()]
    assert files
    return [file for file in files if secret in file.read_bytes()]


async def test_a_revoked_key_opens_nothing_over_restarts(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        kept = (await e.operator.post("/v1/keys", json={})).json()
        gone = (await e.operator.post("/v1/keys", json={})).json()
        assert (await e.operator.delete(f"/v1/keys/{gone['key_id']}")).status_code == 204
        assert (await e.operator.delete(f"/v1/keys/{gone['key_id']}")).status_code == 204
        assert (await e.client(gone["key"]).get("/v1/me")).status_code == 401
    async with edge(tmp_path, byte_model) as e:
        assert (await e.client(gone["key"]).get("/v1/me")).status_code == 401
        assert (await e.client(kept["key"]).get("/v1/me")).status_code == 200


async def test_a_rotated_key_ends_with_its_grace(tmp_path: Path, byte_model: Path) -> None:
    now = [1_800_000_000.0]
    async with edge(tmp_path, byte_model, wall=lambda: now[0]) as e:
        old = (await e.operator.post("/v1/keys", json={"label": "ci"})).json()
        url = f"/v1/keys/{old['key_id']}/rotate"
        new = (await e.operator.post(url, json={"grace_s": 60})).json()
        assert new["label"] == "ci"
        both = [await e.client(one["key"]).get("/v1/me") for one in (old, new)]
        assert [answer.status_code for answer in both] == [200, 200]
        now[0] += 61
        both = [await e.client(one["key"]).get("/v1/me") for one in (old, new)]
        assert [answer.status_code for answer in both] == [401, 200]
        assert (await e.operator.post(url)).status_code == 404, "it has ended"
        later = await e.operator.post(f"/v1/keys/{new['key_id']}/rotate", json={"grace_s": 99})
        assert later.status_code == 201
        await e.operator.delete(f"/v1/keys/{new['key_id']}")
        assert (await e.client(new["key"]).get("/v1/me")).status_code == 401, (
            "sooner than its grace"
        )


async def test_tenants_are_operators_affairs(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        made = await e.operator.post("/v1/tenants", json={"name": "Team A", "weight": 2.0})
        assert made.status_code == 201
        assert (made.json()["tenant_id"], made.json()["weight"]) == ("team-a", 2.0)
        assert (await e.operator.post("/v1/tenants", json={"name": "team a"})).status_code == 422
        issued = await e.operator.post("/v1/keys", json={"tenant_id": "team-a"})
        team = e.client(issued.json()["key"])
        assert (await team.get("/v1/me")).json()["tenant_id"] == "team-a"
        assert (await team.get("/v1/tenants")).status_code == 403
        assert (await team.post("/v1/tenants", json={"name": "x"})).status_code == 403
        assert (await team.patch("/v1/tenants/team-a", json={"weight": 9})).status_code == 403
        assert (await team.post("/v1/keys", json={"admin": True})).status_code == 403
        assert (await team.post("/v1/keys", json={"tenant_id": "local"})).status_code == 403
        assert (await team.get("/v1/usage", params={"tenant_id": "local"})).status_code == 403
        mine = (await e.operator.get("/v1/keys")).json()["keys"][0]["key_id"]
        assert (await team.delete(f"/v1/keys/{mine}")).status_code == 404
        assert (await team.post(f"/v1/keys/{mine}/rotate")).status_code == 404
        change = {"limits": {"tokens_per_min": 100}, "disabled": True}
        changed = (await e.operator.patch("/v1/tenants/team-a", json=change)).json()
        assert (changed["weight"], changed["limits"]["tokens_per_min"]) == (2.0, 100)
        assert (await team.get("/v1/me")).status_code == 401
        assert (await e.operator.patch("/v1/tenants/none", json={})).status_code == 404
        own = await e.operator.patch("/v1/tenants/local", json={"disabled": True})
        assert own.status_code == 422
        unknown = await e.operator.patch("/v1/tenants/team-a", json={"limits": {"tokens": 1}})
        assert unknown.status_code == 422, "a setting that would do nothing"


async def test_a_limit_that_is_set_leaves_the_others(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        limits = {"runs": 8, "tokens_per_min": 100, "open_requests": None}
        await e.operator.post("/v1/tenants", json={"name": "a", "limits": limits})

        async def change(**limits: int | None) -> tuple[int | None, ...]:
            answer = await e.operator.patch("/v1/tenants/a", json={"limits": limits})
            found = answer.json()["limits"]
            return tuple(found[key] for key in ("runs", "tokens_per_min", "open_requests"))

        assert await change(runs=16) == (16, 100, None)
        assert await change(tokens_per_min=None) == (16, None, None)
        assert await change() == (16, None, None)
    async with edge(tmp_path, byte_model) as e:
        kept = e.access.tenant(TenantId("a")).limits
        assert (kept.runs, kept.tokens_per_min, kept.open_requests) == (16, None, None)
        assert kept.requests_per_s == TenantLimits().requests_per_s


async def test_an_operators_key_is_not_there_for_the_other_keys_of_its_tenant(
    tmp_path: Path, byte_model: Path
) -> None:
    async with edge(tmp_path, byte_model) as e:
        theirs = (await e.operator.get("/v1/me")).json()["key_id"]
        made = (await e.operator.post("/v1/keys", json={"label": "ci"})).json()
        ci = e.client(made["key"])
        assert (await ci.post(f"/v1/keys/{theirs}/rotate")).status_code == 404
        assert (await ci.delete(f"/v1/keys/{theirs}")).status_code == 404
        shown = (await ci.get("/v1/keys")).json()
        assert ([key["key_id"] for key in shown["keys"]], shown["total"]) == ([made["key_id"]], 1)
        assert (await e.operator.get("/v1/keys")).json()["total"] == 2
        assert (await e.operator.post(f"/v1/keys/{theirs}/rotate")).json()["admin"] is True
        assert (await ci.post(f"/v1/keys/{made['key_id']}/rotate")).json()["admin"] is False


async def test_what_was_used_is_read_back(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice, bob = await e.tenant("alice", device_s=100), await e.tenant("bob")
        sent = {"file": {"model": str(byte_model), **job("sums")}, "files": {"rows.jsonl": ROWS}}
        made = (await alice.post("/v1/jobs", json=sent)).json()["jobs"][0]

        async def done() -> bool:
            return bool((await alice.get("/v1/jobs/sums")).json()["status"] == "done")

        await until(done)
        usage = (await alice.get("/v1/usage")).json()
        (line,) = usage["usage"]
        assert line["run_id"] == made["job_id"]
        place = e.house.place(str(byte_model)) / "jobs" / made["job_id"]
        samples = list(read_jsonl(place / "samples.jsonl"))
        assert line["sampled_tokens"] == sum(sum(row["turn_tokens"]) for row in samples)
        prompts = [row["prompt_tokens"] for row in samples if row["group"] == 0]
        assert line["prompt_tokens"] == sum(prompts), "one prompt is asked once for all its samples"
        assert line["trained_tokens"] > 0
        assert line["device_s"] > 0
        assert usage["total"]["device_s"] == line["device_s"]
        by_day = (await alice.get("/v1/usage", params={"by": "day"})).json()["usage"]
        assert [day["sampled_tokens"] for day in by_day] == [line["sampled_tokens"]]
        assert (await bob.get("/v1/usage")).json()["usage"] == []
        kinds = [one["kind"] for one in (await alice.get("/v1/events")).json()["events"]]
        assert kinds[-2:] == ["job_running", "job_done"]
        assert (await bob.get("/v1/events")).json()["events"] == []


async def test_a_used_up_budget_holds_and_survives_a_restart(
    tmp_path: Path, byte_model: Path
) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice", device_s=5)
        store, tenant_id = e.house.store, TenantId("alice")
        used = Used(kind="sample", device_s=6.0, tokens=10)
        store.usage.charge(tenant_id, [(RunId(""), used)], now=e.house.wall())
        quota = (await alice.get("/v1/quota")).json()
        assert quota["limits"]["device_s"]["limit"] == 5
        assert quota["limits"]["runs"] == {"limit": None, "used": 0, "unit": "runs"}
    async with edge(tmp_path, byte_model) as e:
        alice = e.client((await e.access.issue(TenantId("alice"))).key)
        quota = (await alice.get("/v1/quota")).json()
        assert quota["limits"]["device_s"]["used"] == 6.0
        assert "5 device-seconds" in quota["waiting"]


async def test_a_job_that_never_trains_is_on_the_account_too(
    tmp_path: Path, byte_model: Path
) -> None:
    """Every group is worth the same, so no step makes a version that would charge it."""
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        rows = "\n".join(f'{{"prompt": "{i}?", "answer": "no such answer"}}' for i in range(20))
        sent = {"model": str(byte_model), **job("flat", steps=2)}
        await alice.post("/v1/jobs", json={"file": sent, "files": {"rows.jsonl": rows}})

        async def ended() -> bool:
            return str((await alice.get("/v1/jobs/flat")).json()["status"]) in ("done", "failed")

        await until(ended)
        (line,) = (await alice.get("/v1/usage")).json()["usage"]
        assert line["trained_tokens"] == 0
        assert line["sampled_tokens"] > 0
        assert line["prompt_tokens"] > 0


async def test_what_a_model_is_asked_without_a_step_is_on_the_account(
    tmp_path: Path, byte_model: Path
) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        await one.get(await one.send(Kind.FORWARD, replace(batch(1), train=False)))
        assert not any(row.tokens for row in h.store.usage.of_tenant(ALICE.tenant_id))
        await h.launches.settle()
        rows = {row.kind: row.tokens for row in h.store.usage.of_tenant(ALICE.tenant_id)}
        assert sum(rows.values()) > 0
        await h.launches.settle()
        again = {row.kind: row.tokens for row in h.store.usage.of_tenant(ALICE.tenant_id)}
        assert again == rows, "nothing is charged twice"


async def test_clients_are_told_their_tenants_limits(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice, bob = await e.tenant("alice", open_requests=100), await e.tenant("bob")
        asked = {"sdk_version": "0.38.0"}
        told = [
            (await one.post("/api/v1/client/config", json=asked)).json() for one in (alice, bob)
        ]
        assert [one["sample_max_concurrent_requests"] for one in told] == [50, 2000]


async def test_where_no_operators_key_opens_anything_there_is_a_new_one(
    tmp_path: Path, byte_model: Path
) -> None:
    async with house(tmp_path, byte_model) as h:
        first = await h.access.ensure_local_key()
        assert first is not None
        assert await h.access.ensure_local_key() is None, "one is enough"
        who = h.access.caller(first)
        assert (who.tenant_id, who.admin) == ("local", True)
        await h.access.put_tenant(ALICE.tenant_id)
        theirs = await h.access.issue(ALICE.tenant_id)
        await h.access.revoke(who.tenant_id, who.key_id)
    async with house(tmp_path, byte_model) as h:  # all operators' keys are lost and revoked
        second = await h.access.ensure_local_key()
        assert second not in (None, first)
        assert h.access.caller(str(second)).admin
        assert not h.access.caller(theirs.key).admin, "no tenant's key was made an operator's"
        with pytest.raises(Unauthorized):
            h.access.caller(first)
        await h.access.put_tenant(LOCAL_TENANT, disabled=True)
        await h.access.revoke(LOCAL_TENANT, h.access.keys(LOCAL_TENANT)[-1].key_id)
        third = await h.access.ensure_local_key()
        assert h.access.caller(str(third)).admin, "the tenant was disabled: it is not any more"
