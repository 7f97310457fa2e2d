"""Neighbours: two tenants at work, and a third that does everything wrong.

The good ones train a model of the Tinker API and a job, on a real socket, before and while the bad
one sends wrong keys, foreign ids, malformed bodies, bombs, NaN and floods. Nothing of theirs fails,
nothing of the bad one's is an error of ours, and nothing is slower than a bound.
"""

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from edge_support import ROWS, job
from serving import Served, served
from tinker_support import PROTOBUF, Model, Session, logprobs, ok

from plait.core.ids import TenantId
from plait.service.limits import TenantLimits

SOON_S = 120.0
BAD_S = 8.0
"""How long the bad one goes on."""
SLOWEST_S = 2.0
"""For one short request of a good tenant meanwhile, on a machine with two busy cores."""
FINISHED = {"reason": {"type": "success"}}


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


class Bad:
    """Everything wrong, in turn, and what it was answered."""

    def __init__(self, server: Served, key: str, foreign: dict[str, str], seed: int) -> None:
        self._server, self._key, self._foreign = server, key, foreign
        self._random = random.Random(seed)
        compressor = zstandard.ZstdCompressor().compressobj()
        parts = [compressor.compress(bytes(2**20)) for _ in range(200)]
        self._packed = b"".join(parts) + compressor.flush()
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []

    async def go_on(self, until: float) -> None:
        async with client(self._server, self._key) as http:
            for what in itertools.cycle(self._everything()):
                if time.monotonic() > until:
                    return
                try:
                    answers = await what(http)
                except httpx.TransportError:
                    continue  # cut off, which is an answer too
                for answer in answers:
                    self.statuses[answer.status_code] += 1
                    if answer.status_code >= 500 or 200 <= answer.status_code < 300:
                        self.wrong.append(
                            f"{answer.request.url} {answer.status_code} {answer.text[:200]}"
                        )

    def _everything(self) -> list[Callable[[httpx.AsyncClient], Awaitable[list[httpx.Response]]]]:
        everything = [
            self._wrong_keys,
            self._foreign_ids,
            self._malformed,
            self._bomb,
            self._not_finite,
            self._long_head,
            self._large_body,
            self._traversal,
            self._flood,
        ]
        self._random.shuffle(everything)
        return everything

    async def _wrong_keys(self, http: httpx.AsyncClient) -> list[httpx.Response]:
        keys = ("tml-wrong", "eyJhbGciOiJub25lIn0.e30.", self._key[:-1], "\x7f" * 20)
        return [await http.get("/v1/jobs", headers={"X-API-Key": key}) for key in keys]

    async def _foreign_ids(self, http: httpx.AsyncClient) -> list[httpx.Response]:
        model, job_id, session = (self._foreign[k] for k in ("model", "job", "session"))
        return [
            await http.post("/api/v1/get_info", json={"model_id": model}),
            await http.post("/api/v1/session_heartbeat", json={"session_id": session}),
            await http.post(
                f"/api/v1/sessions/{session}/finish", json={"reason": {"type": "success"}}
            ),
            await http.post("/api/v1/retrieve_future", json={"request_id": f"{model}:1"}),
            await http.post(
                "/api/v1/optim_step", json={"model_id": model, "seq_id": 1, "adam_params": {}}
            ),
            await http.get(f"/v1/jobs/{job_id}"),
            await http.post(f"/v1/jobs/{job_id}/cancel"),
            await http.get(f"/v1/runs/{model}/why"),
        ]

    async def _malformed(self, http: httpx.AsyncClient) -> list[httpx.Response]:
        junk = self._random.randbytes(self._random.randrange(1, 2000))
        text = {"Content-Type": "application/json"}
        return [
            await http.post("/api/v1/forward_backward", content=junk, headers=PROTOBUF),
            await http.post("/api/v1/create_session", content=junk, headers=text),
            await http.post(
                "/api/v1/create_session", content=b'{"tags": ' + b"[" * 5000, headers=text
            ),
            await http.post("/v1/jobs", content=junk, headers={"Content-Type": "application/yaml"}),
            await http.post("/v1/jobs", content=b'{"file": {}}', headers=text),
            await http.post("/v1/chat/completions", content=junk, headers=text),
        ]

    async def _bomb(self, http: httpx.AsyncClient) -> list[httpx.Response]:
        headers = PROTOBUF | {"Content-Encoding": "zstd"}
        return [await http.post("/api/v1/forward_backward", content=self._packed, headers=headers)]

    async def _not_finite(self, http: httpx.AsyncClient) -> list[httpx.Response]:
        headers = {"Content-Type": "application/json"}
        return [
            await http.post(
                path, content=json.dumps(body).replace('"N"', word).encode(), headers=headers
            )
            for word in ("NaN", "Infinity", "1e999")
            for path, body in (
                ("/v1/jobs", {"file": {"steps": "N"}}),
                ("/v1/completions", {"model": "m", "prompt": "x", "temperature": "N"}),
                ("/v1/tenants", {"name": "x", "weight": "N"}),
            )
        ]

    async def _long_head(self, http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.get("/v1/jobs", headers={"X-Long": "a" * 50_000})]

    async def _large_body(self, http: httpx.AsyncClient) -> list[httpx.Response]:
        headers = {"Content-Type": "application/json"}
        return [await http.post("/v1/jobs", content=b" " * (17 * 2**20), headers=headers)]

    async def _traversal(self, http: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await http.get(f"/v1/jobs/{name}")
            for name in ("..%2f..%2flock", "%00", "%2e%2e", "a" * 5000)
        ] + [
            await http.get("/v1/checkpoints/archive", params={"path": path})
            for path in ("tinker://../../weights/x", "/etc/passwd", "tinker://a/weights/../../../x")
        ]

    async def _flood(self, http: httpx.AsyncClient) -> list[httpx.Response]:
        answers = await asyncio.gather(*(http.get("/v1/nothing") for _ in range(200)))
        assert all(a.status_code in (404, 429) for a in answers)
        for answer in answers:
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1
        return list(answers)


@pytest.mark.slow
async def test_two_good_tenants_do_not_notice_a_bad_one(tmp_path: Path, byte_model: Path) -> None:
    took_s: list[float] = []
    with served(tmp_path, byte_model) as server:
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
            bad = [Bad(server, mallory, foreign, seed) for seed in (1, 2)]
            end = time.monotonic() + BAD_S

            async def work(model: Model) -> int:
                n = 0
                while time.monotonic() < end:
                    await trained(model)
                    n += 1
                return n

            async with asyncio.timeout(SOON_S):
                n_steps, *_ = await asyncio.gather(
                    asyncio.gather(*(work(model) for model in models)),
                    *(each.go_on(end) for each in bad),
                )
            slowest_s = max(took_s)
            after = (await two.get(f"/v1/jobs/{job_id}")).json()
            for model in models:
                await trained(model)
    wrong, seen = bad[0].wrong + bad[1].wrong, bad[0].statuses + bad[1].statuses
    assert not wrong, "\n".join(wrong[:20])
    assert {400, 401, 404, 413, 422, 429, 431} <= set(seen), seen
    assert after["status"] == "running"
    assert after["step"] > before, "the job goes on"
    assert min(n_steps) >= 3, "and so do the models"
    assert slowest_s < SLOWEST_S
