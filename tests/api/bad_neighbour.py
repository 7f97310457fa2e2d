"""A bad neighbour: everything wrong, in turn, from a process of its own.

Its clients cost more than what they ask for: a pool of a hundred connections alone takes a loop
half a second. Told on stdin what to be, it says that it is ready, and when it hears ``go`` it
begins; what it was answered is its last line.
"""

import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx
import zstandard

SOON_S = 120.0
PROTOBUF = {"Content-Type": "application/x-protobuf"}


class Bad:
    """Everything wrong, in turn, and what it was answered."""

    def __init__(self, url: str, key: str, foreign: dict[str, str], seed: int) -> None:
        self._url, self._key, self._foreign = url, key, foreign
        self._random = random.Random(seed)
        compressor = zstandard.ZstdCompressor().compressobj()
        parts = [compressor.compress(bytes(2**20)) for _ in range(200)]
        self._packed = b"".join(parts) + compressor.flush()
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []

    async def go_on(self, until: float) -> None:
        headers = {"X-API-Key": self._key}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=SOON_S) as http:
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


async def main() -> None:
    told = json.loads(sys.stdin.readline())
    bad = [Bad(told["url"], told["key"], told["foreign"], seed) for seed in told["seeds"]]
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + told["seconds"]
    await asyncio.gather(*(each.go_on(until) for each in bad))
    statuses = sum((each.statuses for each in bad), Counter[int]())
    print(json.dumps({"statuses": statuses, "wrong": [w for each in bad for w in each.wrong]}))


if __name__ == "__main__":
    asyncio.run(main())
