"""Neighbours: two tenants at work, and a third that does everything wrong.

The good ones train a model of the Tinker API and a job, on a real socket, before and while the bad
one sends wrong keys, foreign ids, malformed bodies, bombs, NaN and floods. Nothing of theirs fails,
nothing of the bad one's is an error of ours, and nothing is slower than a bound.

The bad one's clients are in a process of their own: here they would hold up the good ones' clients.
The server's directory is in memory where it can be: on a disk, a commit waits for whatever other
tests write at the moment, and that is nothing that a tenant does to another.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from edge_support import ROWS, job
from serving import Served, served
from tinker_support import Model, Session, logprobs, ok

from plait.core.ids import TenantId
from plait.service.limits import TenantLimits

SOON_S = 120.0
BAD = Path(__file__).with_name("bad_neighbour.py")
BAD_S = 8.0
"""How long the bad one goes on."""
MEMORY = Path("/dev/shm")
SLOWEST_S = 2.0
"""For one short request of a good tenant meanwhile, on a machine with two busy cores."""
FINISHED = {"reason": {"type": "success"}}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory that no other test's writing holds up."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as made:
        yield Path(made)


def tenant(server: Served, name: str, **limits: Any) -> str:
    """A tenant's key."""

    async def make() -> str:
        access = server.edge.access
        await access.put_tenant(TenantId(name), name=name, limits=TenantLimits(**limits))
        return (await access.issue(TenantId(name))).key

    key: str = server.call(make())
    return key


def client(server: Served, key: str, took_s: list[float] | None = None) -> httpx.AsyncClient:
    """A tenant's client; it notes how long each answer takes that is not waited for on purpose."""

    async def asked(request: httpx.Request) -> None:
        request.extensions["began"] = time.monotonic()

    async def answered(response: httpx.Response) -> None:
        if took_s is not None and not response.request.url.path.endswith("retrieve_future"):
            took_s.append(time.monotonic() - response.request.extensions["began"])

    hooks = {"request": [asked], "response": [answered]}
    headers = {"X-API-Key": key}
    return httpx.AsyncClient(
        base_url=server.url, headers=headers, timeout=SOON_S, event_hooks=hooks
    )


async def opened(http: httpx.AsyncClient, model: Path) -> Model:
    """A model of a new session."""
    told = await ok(http.post("/api/v1/create_session", json={"tags": [], "sdk_version": "0"}))
    session = Session(http=http, session_id=told["session_id"], base_model=str(model))
    return await session.model()


async def trained(model: Model) -> None:
    """One step, and a sign of life."""
    assert logprobs(await model.gradient())
    assert "error" not in await model.step()
    await ok(model.session.post("session_heartbeat", session_id=model.session.session_id))


@contextlib.asynccontextmanager
async def bad_neighbour(**told: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """One that is ready to begin."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(BAD), stdin=PIPE, stdout=PIPE, limit=2**24
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(told).encode() + b"\n")
        async with asyncio.timeout(SOON_S):
            assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def done(process: asyncio.subprocess.Process) -> tuple[Counter[int], list[str]]:
    """Let it begin; what it was answered, and what of that was wrong."""
    out, _ = await process.communicate(b"go\n")
    told = json.loads(out.splitlines()[-1])
    return Counter({int(k): n for k, n in told["statuses"].items()}), told["wrong"]


@pytest.mark.slow
async def test_two_good_tenants_do_not_notice_a_bad_one(place: Path, byte_model: Path) -> None:
    took_s: list[float] = []
    with served(place, byte_model) as server:
        keys = [tenant(server, name) for name in ("alice", "bob")]
        mallory = tenant(server, "mallory", requests_per_s=20)
        async with client(server, keys[0], took_s) as one, client(server, keys[1], took_s) as two:
            sent = {
                "file": {"model": str(byte_model), **job("long", steps=10**6)},
                "files": {"rows.jsonl": ROWS},
            }
            job_id = (await two.post("/v1/jobs", json=sent)).json()["jobs"][0]["job_id"]
            models = [await opened(http, byte_model) for http in (one, two)]
            for model in models:
                await trained(model)
            took_s.clear()
            before = (await two.get(f"/v1/jobs/{job_id}")).json()["step"]
            session_id = models[0].session.session_id
            foreign = {"model": models[0].model_id, "session": session_id, "job": job_id}
            told = {"url": server.url, "key": mallory, "foreign": foreign, "seconds": BAD_S}
            async with bad_neighbour(**told, seeds=[1, 2]) as bad:
                end = time.monotonic() + BAD_S

                async def work(model: Model) -> int:
                    n = 0
                    while time.monotonic() < end:
                        await trained(model)
                        n += 1
                    return n

                async with asyncio.timeout(SOON_S):
                    *n_steps, (seen, wrong) = await asyncio.gather(
                        *(work(model) for model in models), done(bad)
                    )
            slowest_s = max(took_s)
            after = (await two.get(f"/v1/jobs/{job_id}")).json()
            for model in models:
                await trained(model)
    assert not wrong, "\n".join(wrong[:20])
    assert {400, 401, 404, 413, 422, 429, 431} <= set(seen), seen
    assert after["status"] == "running"
    assert after["step"] > before, "the job goes on"
    assert min(n_steps) >= 3, "and so do the models"
    assert slowest_s < SLOWEST_S
