"""Names of jobs and of their latest versions are looked up: nothing else is read for them."""

from pathlib import Path
from typing import Any

import pytest
from edge_support import edge, job
from jobs_support import ended, file_of, submit

from plait.core.ids import RunId, TenantId
from plait.service.openai_api.catalog import Catalog
from plait.service.ports import Who


async def test_one_name_is_looked_up_among_many_jobs(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice, store = await e.tenant("alice"), e.house.store
        made, _ = await submit(
            alice, file_of(byte_model, job("sums", steps=2), job("more", steps=1))
        )
        assert (await ended(alice, made["job_id"]))["status"] == "done"
        last = store.mutations.versions(RunId(made["job_id"]))[-1]

        def all_of_them(*_args: Any, **_over: Any) -> Any:
            raise AssertionError("all were read to find one")

        monkeypatch.setattr(store.jobs, "list", all_of_them)
        monkeypatch.setattr(store.mutations, "versions", all_of_them)
        assert (await alice.get("/v1/jobs/sums")).json()["job_id"] == made["job_id"]
        served = await Catalog(e.house).find(Who(tenant_id=TenantId("alice")), "sums@latest")
        assert (served.source.run, served.source.version) == (made["job_id"], last.version)
        assert served.source.directory == e.house.place(str(byte_model)) / last.path
        monkeypatch.undo()
