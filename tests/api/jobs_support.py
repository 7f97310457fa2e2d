"""Jobs over HTTP: hand some in, wait for their end, read their streams."""

import json
from pathlib import Path
from typing import Any

import httpx
import yaml
from edge_support import ROWS, until


def file_of(model: Path, *jobs: dict[str, Any]) -> str:
    return yaml.safe_dump({"model": str(model), "jobs": list(jobs)})


FILES = {"rows.jsonl": ROWS}


async def submit(client: httpx.AsyncClient, file: Any, **over: Any) -> list[dict[str, Any]]:
    answer = await client.post("/v1/jobs", json={"file": file, "files": FILES, **over})
    assert answer.status_code == 201, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


async def ended(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        found = (await client.get(f"/v1/jobs/{job_id}")).json()
        return found if found["status"] in ("done", "failed", "cancelled") else None

    view: dict[str, Any] = await until(look)
    return view


async def lines(client: httpx.AsyncClient, url: str, **over: Any) -> list[tuple[str, str, Any]]:
    """Events of a stream that ends: id, event, data."""
    events, now = [], {"id": "", "event": "", "data": ""}
    async with client.stream("GET", url, **over) as stream:
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            key, _, value = line.partition(": ")
            if not line and now["data"]:
                events.append((now["id"], now["event"], json.loads(now["data"])))
                now = {"id": "", "event": "", "data": ""}
            elif key in now:
                now[key] = value
    return events


async def running(client: httpx.AsyncClient, url: str) -> bool:
    return bool((await client.get(url)).json()["status"] == "running")
