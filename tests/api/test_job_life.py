"""Jobs that are paused, that fail, that outlive a restart, and what is kept of them."""

from pathlib import Path
from typing import Any

import pytest
from edge_support import edge, job, until
from jobs_support import ended, file_of, running, submit

from plait.core.errors import StoreError, WorkerLost
from plait.core.ids import RunId, TenantId
from plait.obs.jsonl import read_jsonl
from plait.service.jobs_api import course


async def test_a_job_is_paused_resumed_and_cancelled(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file_of(byte_model, job("long", steps=10**6)))
        url = f"/v1/jobs/{made['job_id']}"

        async def running() -> bool:
            return bool((await alice.get(url)).json()["step"] > 0)

        await until(running)
        assert (await alice.post(f"{url}/pause")).json()["status"] == "paused"

        async def held() -> bool:
            why = (await alice.get("/v1/runs/long/why")).json()
            return bool(why["waiting_for"])

        await until(held)
        before = (await alice.get(url)).json()["step"]
        assert (await alice.post(f"{url}/resume")).json()["status"] == "running"

        async def further() -> bool:
            return bool((await alice.get(url)).json()["step"] > before)

        await until(further)
        cancelled = (await alice.post(f"{url}/cancel")).json()
        assert (cancelled["status"], cancelled["reason"]) == ("cancelled", "cancelled by its owner")
        assert (await alice.post(f"{url}/pause")).status_code == 409
        assert (await alice.post(f"{url}/cancel")).json()["status"] == "cancelled"


async def test_a_job_goes_on_after_a_restart_as_if_there_was_none(
    tmp_path: Path, byte_model: Path
) -> None:
    def rows(directory: Path, job_id: str) -> list[Any]:
        (file,) = directory.glob(f"models/*/jobs/{job_id}/metrics.jsonl")
        return [(row["step"], row["reward_mean"], row["loss"]) for row in read_jsonl(file)]

    file = file_of(byte_model, job("sums", steps=12, seed=3), job("held", steps=12))
    async with edge(tmp_path / "one", byte_model) as e:
        alice = await e.tenant("alice")
        made, held = await submit(alice, file)
        await alice.post(f"/v1/jobs/{held['job_id']}/pause")

        async def far() -> bool:
            return bool((await alice.get("/v1/jobs/sums")).json()["step"] >= 3)

        await until(far)
        seen = (await alice.get("/v1/jobs/sums")).json()["status"]
    async with edge(tmp_path / "one", byte_model) as e:
        alice = e.client((await e.access.issue(TenantId("alice"))).key)
        assert seen == "running"
        assert (await ended(alice, made["job_id"]))["status"] == "done"
        assert (await alice.get("/v1/jobs/held")).json()["status"] == "paused"
    async with edge(tmp_path / "two", byte_model) as e:
        bob = await e.tenant("bob")
        whole, _ = await submit(bob, file)
        await ended(bob, whole["job_id"])
    assert rows(tmp_path / "one", made["job_id"]) == rows(tmp_path / "two", whole["job_id"])


async def test_a_failed_job_goes_on_when_its_owner_asks_for_it(
    tmp_path: Path, byte_model: Path
) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file_of(byte_model, job("sums", steps=8)))
        url = f"/v1/jobs/{made['job_id']}"

        async def far() -> bool:
            return bool((await alice.get(url)).json()["step"] >= 2)

        await until(far)
        launch = e.house.launched(str(byte_model))
        assert launch is not None
        launch.session.head.give_up(WorkerLost("the workers die on every start"))
        failed = await ended(alice, made["job_id"])
        assert (failed["status"], failed["reason"]) == ("failed", "the workers die on every start")
        again = (await alice.post(f"{url}/resume")).json()
        assert (again["status"], again["reason"] != failed["reason"]) == ("queued", True)
        assert again["step"] >= 2, "from its last committed step"
        assert (await ended(alice, made["job_id"]))["status"] == "done"
        rows = (await alice.get(f"{url}/metrics")).json()["steps"]
        assert [row["step"] for row in rows] == list(range(1, 9))
        refused = await alice.post(f"{url}/resume")
        assert refused.status_code == 409
        assert "has ended (done): submit it again" in refused.text


async def test_files_of_a_failed_job_are_kept_for_a_week(tmp_path: Path, byte_model: Path) -> None:
    now = [1_800_000_000.0]
    async with edge(tmp_path, byte_model, app={"wall": lambda: now[0]}) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file_of(byte_model, job("sums", steps=10**6)))
        url = f"/v1/jobs/{made['job_id']}"
        await until(lambda: running(alice, url))
        launch = e.house.launched(str(byte_model))
        assert launch is not None
        launch.session.head.give_up(WorkerLost("gone"))
        await ended(alice, made["job_id"])
        assert len(list((tmp_path / "submissions").iterdir())) == 1
        now[0] += 8 * 86400.0
    async with edge(tmp_path, byte_model, app={"wall": lambda: now[0]}) as e:
        alice = e.client((await e.access.issue(TenantId("alice"))).key)
        assert list((tmp_path / "submissions").iterdir()) == []
        refused = await alice.post(f"{url}/resume")
        assert refused.status_code == 409
        assert "submit it again" in refused.text


async def test_jobs_that_have_ended_take_nothing(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        names = ("a", "b", "c")
        for row in await submit(alice, file_of(byte_model, *(job(n, steps=1) for n in names))):
            assert (await ended(alice, row["job_id"]))["status"] == "done"
        launch = e.house.launched(str(byte_model))
        assert launch is not None

        async def forgotten() -> bool:
            session = launch.session
            return not (launch.specs or session.head.roster.all() or session._clients)

        await until(forgotten)
        assert launch._tasks == {}
        assert launch.recorder._jobs == {}
        assert (await alice.get("/v1/jobs/a")).json()["step"] == 1, "as its files have it"


async def test_damaged_files_of_one_job_keep_no_job_from_the_list(
    tmp_path: Path, byte_model: Path
) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        names = ("a", "b", "c")
        made = await submit(alice, file_of(byte_model, *(job(n, steps=2) for n in names)))
        ids = [one["job_id"] for one in made]
        rewards = {one: (await ended(alice, one))["reward"] for one in ids}
        files = [e.house.place(str(byte_model)) / "jobs" / one / "metrics.jsonl" for one in ids]
        assert list(rewards.values()) == [[*read_jsonl(file)][-1]["reward_mean"] for file in files]
        for file in files[:2]:
            file.write_text("no JSON\n")
        for one in ids[1:]:  # as a controller that commits its step and no more
            e.house.store.runs.save_progress(RunId(one), {"step": 2}, now=1.0)
        listed = (await alice.get("/v1/jobs")).json()["jobs"]
        shown = {one["job_id"]: one["reward"] for one in listed}
        assert shown == rewards | {ids[1]: None}


@pytest.mark.parametrize("when", ["begin", "end"])
async def test_how_a_job_stands_is_written_down_as_soon_as_the_disk_takes_it(
    when: str, tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "AGAIN_S", 0.05)
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        jobs, full = e.house.store.jobs, when == "begin"
        real = jobs.set_status

        def put(*args: Any, **by: Any) -> Any:
            if full:
                raise StoreError("the disk is full")
            return real(*args, **by)

        monkeypatch.setattr(jobs, "set_status", put)
        (made,) = await submit(alice, file_of(byte_model, job("sums", steps=4)))
        url = f"/v1/jobs/{made['job_id']}"
        if when == "end":
            await until(lambda: running(alice, url))
            full = True

        async def refused() -> bool:
            return bool("the disk is full" in (await alice.get(url)).json()["reason"])

        await until(refused)
        full = False
        assert (await ended(alice, made["job_id"]))["status"] == "done"


async def test_a_job_that_waits_for_the_disk_is_cancelled(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreError("the disk is full")

    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        launch = await e.house.launch(str(byte_model))
        monkeypatch.setattr(launch, "add_job", refuse)
        (made,) = await submit(alice, file_of(byte_model, job("sums", steps=4)))
        url = f"/v1/jobs/{made['job_id']}"

        await until(lambda: running(alice, url))
        assert (await alice.post(f"{url}/cancel")).json()["status"] == "cancelled"
