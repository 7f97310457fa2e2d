"""Jobs API: from a job file to an adapter over HTTP, and everything on the way."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from edge_support import ROWS, edge, job, until
from jobs_support import FILES, ended, file_of, submit

from plait.cluster import sandbox
from plait.core.errors import ConfigError
from plait.core.ids import TenantId
from plait.service.jobs_api import desk as desk_module
from plait.service.jobs_api.submission import MAX_TEXT
from plait.service.ports import Who


async def test_a_job_file_becomes_an_adapter(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file_of(byte_model, job("sums")))
        assert (made["name"], made["steps"]) == ("sums", 3)
        view = await ended(alice, made["job_id"])
        assert (view["status"], view["step"]) == ("done", 3), view["reason"]
        assert view["reward"] is not None
        metrics = (await alice.get("/v1/jobs/sums/metrics")).json()
        assert [row["step"] for row in metrics["steps"]] == [1, 2, 3]
        found = (await alice.get("/v1/jobs/sums/artifacts")).json()["artifacts"]
        paths = {one["path"]: one["size_bytes"] for one in found}
        assert {"config.yaml", "metrics.jsonl", "samples.jsonl"} < set(paths)
        name = next(path for path in paths if path.startswith("adapter/"))
        fetched = await alice.get(f"/v1/jobs/sums/artifacts/{name}")
        assert len(fetched.content) == paths[name]
        why = (await alice.get("/v1/runs/sums/why")).json()
        assert (why["run_id"], why["waiting_for"]) == (made["job_id"], "")
        runs = (await alice.get("/v1/runs")).json()["runs"]
        assert [(r["run_id"], r["kind"], r["name"]) for r in runs] == [
            (made["job_id"], "job", "sums")
        ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stepps": 3}, "job.yaml:"),
        ({"steps": -1}, "steps must be"),
        ({"environment": {"name": "tiny-summ"}}, "does not run here"),
        ({"environment": {"name": "os:system"}}, "does not run here"),
        ({"environment": {"name": "tiny-sum", "colour": 1}}, "colour"),
        ({"environment": {"name": "dataset", "file": "/etc/passwd"}}, "no file of this submission"),
        ({"environment": {"name": "dataset", "file": "../x.jsonl"}}, "no file of this submission"),
        ({"rewards": [{"function": "os:system"}]}, "is code"),
        ({"rewards": [{"name": "os:system"}]}, "is code"),
        ({"rewards": [{"name": "judge", "base_url": "http://10.0.0.1", "model": "m"}]}, "servers"),
        ({"controller": "os:System"}, "code of yours"),
        ({"trackers": ["wandb"]}, "operator's accounts"),
        ({"base_dir": "/"}, "leave it out"),
        ({"weight": 7.0}, "operator's to give"),
        ({"priority": 7}, "operator's to give"),
        ({"model": "tiny"}, "is not served here"),
        ({"model": "/etc"}, "is not served here"),
    ],
)
async def test_what_may_not_run_is_told_and_leaves_nothing(
    tmp_path: Path, byte_model: Path, change: dict[str, Any], says: str
) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        file = file_of(byte_model, job("good"), job("bad", **change))
        answer = await alice.post("/v1/jobs", json={"file": file, "files": FILES})
        assert answer.status_code == 422, answer.text
        message = answer.json()["error"]["message"]
        assert says in message
        assert str(tmp_path) not in message, "where the server keeps things is its own affair"
        assert (await alice.get("/v1/jobs")).json() == {"jobs": [], "total": 0}
        assert list((tmp_path / "submissions").glob("*")) == []


async def test_a_job_file_is_short(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        file = file_of(byte_model, job("good")) + "#" * MAX_TEXT
        answer = await alice.post("/v1/jobs", json={"file": file, "files": FILES})
        assert answer.status_code == 422
        assert "send its data as files" in answer.json()["error"]["message"]


async def test_job_files_are_read_one_at_a_time_and_by_tenants_in_turn(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, order = 0, list[str]()

    def read_jobs(_directory: Any, _text: Any, _files: Any, _rules: Any, tenant: Any) -> None:
        nonlocal reading
        reading += 1
        assert reading == 1
        order.append(tenant.tenant_id)
        reading -= 1
        raise ConfigError("nothing in it")

    monkeypatch.setattr(desk_module, "read_jobs", read_jobs)
    async with edge(tmp_path, byte_model) as e:
        await e.tenant("alice")
        await e.tenant("bob")
        desk = desk_module.Desk(e.house, wall=lambda: 0.0)
        who = [Who(tenant_id=TenantId(t)) for t in ("alice", "alice", "alice", "alice", "bob")]
        asked = [desk.submit(one, "", {}, None) for one in who]
        done = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(error) for error in done] == ["nothing in it"] * 5
    assert order == ["alice", "bob", "alice", "alice", "alice"]


async def test_files_come_along_by_plain_names(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        spec = job("mine", environment={"name": "dataset", "file": "my-rows.jsonl"})
        (made,) = await submit(alice, file_of(byte_model, spec), files={"my-rows.jsonl": ROWS})
        assert (await ended(alice, made["job_id"]))["status"] == "done"
        kept = tmp_path / "submissions"

        async def gone() -> bool:
            return not list(kept.glob("*"))

        await until(gone)  # nobody needs them any more
        for name in ("../rows.jsonl", "a/b.jsonl", ".jsonl", "x.py", "job.yaml", "x.jsonl\0"):
            sent = {"file": file_of(byte_model, job("b")), "files": {name: ROWS}}
            assert (await alice.post("/v1/jobs", json=sent)).status_code in (400, 422), name


async def test_yaml_is_a_body_of_its_own(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        text = file_of(byte_model, job("sums", environment={"name": "tiny-sum"}, rewards=[]))
        headers = {"Content-Type": "application/yaml"}
        answer = await e.operator.post("/v1/jobs", content=text, headers=headers)
        assert answer.status_code == 201
        for body in (b"\xff", b"[", b"!!python/object:os.system {}"):
            answer = await e.operator.post("/v1/jobs", content=body, headers=headers)
            assert answer.status_code in (400, 422)


async def test_a_repeated_submission_is_the_first_one(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice, bob = await e.tenant("alice"), await e.tenant("bob")
        body = {"file": file_of(byte_model, job("one"), job("two")), "files": FILES}
        key = {"Idempotency-Key": "k"}
        first, again = [(await alice.post("/v1/jobs", json=body, headers=key)).json() for _ in "12"]
        assert [one["job_id"] for one in first["jobs"]] == [one["job_id"] for one in again["jobs"]]
        assert (await alice.get("/v1/jobs")).json()["total"] == 2
        other = {"file": file_of(byte_model, job("three")), "files": FILES}
        assert (await alice.post("/v1/jobs", json=other, headers=key)).status_code == 400
        theirs = (await bob.post("/v1/jobs", json=body, headers=key)).json()["jobs"]
        assert theirs[0]["job_id"] != first["jobs"][0]["job_id"]


async def test_over_the_limit_of_runs_a_job_waits_and_says_why(
    tmp_path: Path, byte_model: Path
) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice", runs=1)
        first, second = await submit(
            alice, file_of(byte_model, job("one", steps=10**6), job("two", steps=2))
        )

        async def waits() -> bool:
            why = (await alice.get("/v1/runs/two/why")).json()
            told = "1 of 1 runs" in why["reason"] and "position 1" in why["reason"]
            return told and (why["waiting_for"], why["position"]) == ("place", 1)

        await until(waits)
        assert (await alice.get("/v1/jobs/two")).json()["status"] == "queued"
        await alice.post(f"/v1/jobs/{first['job_id']}/cancel")
        assert (await ended(alice, second["job_id"]))["status"] == "done"


async def test_another_tenants_job_is_none(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice, bob = await e.tenant("alice"), await e.tenant("bob")
        (made,) = await submit(alice, file_of(byte_model, job("sums")))
        url = f"/v1/jobs/{made['job_id']}"
        for method, path in (
            ("GET", ""),
            ("POST", "/cancel"),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("GET", "/logs"),
            ("GET", "/metrics"),
            ("GET", "/artifacts"),
            ("GET", "/artifacts/config.yaml"),
        ):
            assert (await bob.request(method, url + path)).status_code == 404, path
        assert (await bob.get(f"/v1/runs/{made['job_id']}/why")).status_code == 404
        assert (await bob.get("/v1/jobs")).json()["total"] == 0
        assert (await bob.get("/v1/runs")).json()["total"] == 0
        await ended(alice, made["job_id"])
        for path in ("../config.yaml", "versions/000001/adapter.safetensors", "..%2f..%2flock"):
            found = await alice.get(f"{url}/artifacts/{path}")
            assert found.status_code == 404, path


async def test_names_that_two_jobs_share_need_an_id(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        for _ in range(2):
            await submit(alice, file_of(byte_model, job("sums")))
        answer = await alice.get("/v1/jobs/sums")
        assert answer.status_code == 404
        assert "2 jobs are called so" in answer.json()["error"]["message"]


async def test_over_its_tokens_a_tenants_jobs_wait_and_others_go_on(
    tmp_path: Path, byte_model: Path
) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice, bob = await e.tenant("alice", tokens_per_min=1), await e.tenant("bob")
        (hers,) = await submit(alice, file_of(byte_model, job("hers", steps=10**6)))
        (his,) = await submit(bob, file_of(byte_model, job("his", steps=5)))

        async def waits() -> bool:
            why = (await alice.get("/v1/runs/hers/why")).json()
            return why["waiting_for"] == "quota" and "1 tokens a minute" in why["reason"]

        await until(waits)
        assert (await ended(bob, his["job_id"]))["status"] == "done"
        view = (await alice.get("/v1/jobs/hers")).json()
        assert (view["status"], view["stage"]) == ("running", "paused")
        assert "tokens a minute" in view["reason"]
        await e.access.put_tenant(TenantId("alice"), name="alice")
        before = (await alice.get("/v1/jobs/hers")).json()["step"]

        async def further() -> bool:
            return bool((await alice.get(f"/v1/jobs/{hers['job_id']}")).json()["step"] > before)

        await until(further)


MINE = """
def half(prompts, completions, **_):
    return [len(set(c)) / max(len(c), 1) for c in completions]
"""


@pytest.mark.skipif(not sandbox.available(), reason="no bubblewrap here")
async def test_code_runs_where_the_operator_allows_it(tmp_path: Path, byte_model: Path) -> None:
    spec = job("mine", rewards=[{"function": "mine:half"}])
    async with edge(tmp_path, byte_model, app={"allow_code": True}) as e:
        alice = await e.tenant("alice")
        files = {**FILES, "mine.py": MINE}
        (made,) = await submit(alice, file_of(byte_model, spec), files=files)
        view = await ended(alice, made["job_id"])
        assert (view["status"], view["step"]) == ("done", 3), view["reason"]
        sent = {"file": file_of(byte_model, job("bad", controller="mine:Half")), "files": files}
        assert (await alice.post("/v1/jobs", json=sent)).status_code == 422
        no_file = {"file": file_of(byte_model, spec), "files": FILES}
        assert "send mine.py along" in (await alice.post("/v1/jobs", json=no_file)).text


async def test_without_a_sandbox_code_is_refused(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "PROGRAM", "no-such-program")
    spec = job("mine", rewards=[{"function": "mine:half"}])
    async with edge(tmp_path, byte_model, app={"allow_code": True}) as e:
        sent = {"file": file_of(byte_model, spec), "files": {**FILES, "mine.py": MINE}}
        answer = await e.operator.post("/v1/jobs", json=sent)
        assert answer.status_code == 422
        assert "bubblewrap" in answer.text
