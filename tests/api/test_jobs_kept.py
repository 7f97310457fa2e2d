"""Jobs over restarts that go wrong: a model that is not served, a row of another version."""

import asyncio
import shutil
from pathlib import Path

import pytest
from edge_support import Edge, edge, job, until
from jobs_support import file_of, submit

from plait.core.errors import WorkerLost
from plait.core.ids import TenantId
from plait.store.store import Store


async def _key(e: Edge) -> str:
    await e.access.put_tenant(TenantId("alice"))
    return (await e.access.issue(TenantId("alice"))).key


async def test_a_job_waits_for_its_model_to_be_served_again(
    tmp_path: Path, byte_model: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(byte_model, other)
    state = tmp_path / "state"
    async with edge(state, byte_model) as e:
        key = await _key(e)
        await submit(e.client(key), file_of(byte_model, job("one", steps=10**6), job("two")))
    async with edge(state, other) as e:
        alice = e.client(key)

        async def waits() -> bool:
            why = (await alice.get("/v1/runs/one/why")).json()
            return "is not served here" in why["reason"]

        await until(waits)
        jobs = (await alice.get("/v1/jobs")).json()["jobs"]
        assert sorted(view["name"] for view in jobs) == ["one", "two"]
        assert (await alice.get("/v1/runs")).status_code == 200
        assert (await alice.get("/v1/jobs/one/metrics")).status_code == 404
        async with asyncio.timeout(3.0):
            cancelled = (await alice.post("/v1/jobs/two/cancel")).json()
        assert cancelled["status"] == "cancelled"
    async with edge(state, byte_model) as e:
        alice = e.client(key)

        async def runs() -> bool:
            return (await alice.get("/v1/jobs/one")).json()["step"] > 0

        await until(runs)
        assert (await alice.get("/v1/jobs/two")).json()["status"] == "cancelled"


async def test_a_job_is_cancelled_while_its_launch_cannot_start(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")

        async def launch(base_model: str) -> None:
            raise WorkerLost("no memory")

        monkeypatch.setattr(e.house, "launch", launch)
        (made,) = await submit(alice, file_of(byte_model, job("one")))

        async def waits() -> bool:
            return (await alice.get("/v1/jobs/one")).json()["reason"] == "no memory"

        await until(waits)
        async with asyncio.timeout(3.0):
            view = (await alice.post(f"/v1/jobs/{made['job_id']}/cancel")).json()
        assert (view["status"], view["reason"]) == ("cancelled", "cancelled by its owner")


async def test_a_row_that_cannot_be_read_harms_nothing_else(
    tmp_path: Path, byte_model: Path
) -> None:
    async with edge(tmp_path, byte_model) as e:
        key = await _key(e)
        url = e.house.store.database.url
    with Store(url) as store:
        store.jobs.submit(
            "j-old", tenant_id=TenantId("alice"), name="old", spec={"of": "yore"}, now=1.0
        )
    async with edge(tmp_path, byte_model) as e:
        alice = e.client(key)
        (view,) = (await alice.get("/v1/jobs")).json()["jobs"]
        assert (view["name"], view["status"]) == ("old", "failed")
        assert "submit it again" in view["reason"]
        assert (await alice.get("/v1/runs/old/why")).status_code == 200
        await submit(alice, file_of(byte_model, job("new")))
