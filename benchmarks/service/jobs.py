"""Jobs: handed in over HTTP, and what their steps were."""

import time
from collections.abc import Mapping
from typing import Any

import httpx

from benchmarks.service.servers import Served

JOB_S = 600.0
POLL_S = 0.5


def submitted_steps(served: Served, text: str, files: Mapping[str, str]) -> list[dict[str, Any]]:
    """The steps' rows of a job file's one job, after its end; RuntimeError if it failed."""
    headers = {"X-API-Key": served.key}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60.0) as http:
        answer = http.post("/v1/jobs", json={"file": text, "files": dict(files)})
        if answer.is_error:
            raise RuntimeError(f"the job was refused: {answer.text}")
        job_id = answer.json()["jobs"][0]["job_id"]
        deadline = time.monotonic() + JOB_S
        while time.monotonic() < deadline:
            job = http.get(f"/v1/jobs/{job_id}").json()
            if job["status"] not in ("queued", "running"):
                break
            time.sleep(POLL_S)
        if job["status"] != "done":
            raise RuntimeError(f"the job is {job['status']}: {job['reason']}")
        return list(http.get(f"/v1/jobs/{job_id}/metrics").json()["steps"])
