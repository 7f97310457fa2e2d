"""Jobs: submit, list, show, watch, steer, fetch."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sse_starlette import EventSourceResponse

from plait.core.errors import ConfigError, RequestError
from plait.core.ids import RunId
from plait.obs.jsonl import read_jsonl
from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.jobs_api.artifacts import artifact, artifacts
from plait.service.jobs_api.desk import Desk
from plait.service.jobs_api.logs import Logs
from plait.service.jobs_api.standing import job_view, layout_of
from plait.service.jobs_api.views import (
    ArtifactsView,
    JobsView,
    JobView,
    Limit,
    MetricsView,
    Offset,
    Status,
    SubmittedView,
    page,
)
from plait.service.ports import House
from plait.store.jobs import JobRow
from plait.store.rows import RunRow

MAX_KEY = 200
JobName = Annotated[str, Path(min_length=1, max_length=120, description="A job's id, or its name")]
YAML = ("yaml", "text/plain")
"""Parts of content types whose body is a job file itself."""


class Submission(BaseModel):
    """A job file, and the files that it names."""

    model_config = ConfigDict(extra="forbid")
    file: str | dict[str, Any] = Field(description="The job file: YAML text, or what it says")
    files: dict[str, str] = Field(
        default={}, description="Data (and code, where it may run) by plain names"
    )


_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": Submission.model_json_schema()},
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}


def router(house: House, desk: Desk) -> APIRouter:
    """Routes under ``/v1/jobs``."""
    api = APIRouter(prefix="/jobs", tags=["jobs"], responses=responses(409))

    logs_of_all = Logs()

    async def viewed(row: JobRow) -> JobView:
        run: RunRow | None = await asyncio.to_thread(house.store.runs.find, RunId(row.job_id))
        return await asyncio.to_thread(job_view, house, desk, row, run)

    @api.post("", status_code=201, openapi_extra=_BODY)
    async def submit(
        request: Request,
        who: Caller,
        idempotency_key: Annotated[str | None, Header(max_length=MAX_KEY)] = None,
    ) -> SubmittedView:
        """Submit the jobs of a job file: all of them, or none and what is wrong."""
        kind = request.headers.get("content-type", "")
        sent = await asyncio.to_thread(_submission, kind, await request.body())
        rows = await desk.submit(who, sent.file, sent.files, idempotency_key)
        return SubmittedView(jobs=[await viewed(row) for row in rows])

    @api.get("")
    async def all_jobs(
        who: Caller,
        status: Status | None = None,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> JobsView:
        """The caller's jobs, newest first."""
        rows = [row for row in await desk.all_of(who) if status is None or row.status == status]
        views = [await viewed(row) for row in page(rows, limit, offset)]
        return JobsView(jobs=views, total=len(rows))

    @api.get("/{job}")
    async def show(job: JobName, who: Caller) -> JobView:
        """One job."""
        return await viewed(await desk.find(who, job))

    @api.post("/{job}/cancel")
    async def cancel(job: JobName, who: Caller) -> JobView:
        """End a job for good; what it has committed stays."""
        return await viewed(await desk.cancel(who, job))

    @api.post("/{job}/pause")
    async def pause(job: JobName, who: Caller) -> JobView:
        """Hold a job back; what it has in flight ends first."""
        return await viewed(await desk.pause(who, job))

    @api.post("/{job}/resume")
    async def resume(job: JobName, who: Caller) -> JobView:
        """Let a paused job go on, or one that failed, from its last committed step."""
        return await viewed(await desk.resume(who, job))

    @api.get(
        "/{job}/logs",
        response_class=EventSourceResponse,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def logs(
        job: JobName,
        who: Caller,
        follow: bool = False,
        after: Annotated[int, Query(ge=0, le=10**9)] = 0,
        last_event_id: Annotated[str | None, Header(pattern=r"^\d{1,9}$")] = None,
    ) -> EventSourceResponse:
        """The job's steps, as server-sent events; with ``follow``, until it ends."""
        row = await desk.find(who, job)

        async def asked() -> JobRow:
            return await desk.find(who, row.job_id)

        seen = after if last_event_id is None else int(last_event_id)
        file = layout_of(house, row).metrics
        told = logs_of_all.lines(
            asked, file, row, after=seen, follow=follow, may=lambda: house.access.opens(who)
        )
        return EventSourceResponse(told)

    @api.get("/{job}/metrics")
    async def metrics(
        job: JobName,
        who: Caller,
        after: Annotated[int, Query(ge=-1, le=10**9)] = -1,
        limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000,
    ) -> MetricsView:
        """Figures of the job's steps later than ``after``, and of its evaluations."""
        file = layout_of(house, await desk.find(who, job)).metrics

        def read() -> list[dict[str, Any]]:
            return [row for row in read_jsonl(file) if row.get("step", 0) > after][:limit]

        rows = await asyncio.to_thread(read)
        return MetricsView(
            steps=[row for row in rows if "eval_n" not in row],
            evaluations=[row for row in rows if "eval_n" in row],
        )

    @api.get("/{job}/artifacts")
    async def all_artifacts(job: JobName, who: Caller) -> ArtifactsView:
        """The job's files."""
        layout = layout_of(house, await desk.find(who, job))
        return ArtifactsView(artifacts=await asyncio.to_thread(artifacts, layout))

    @api.get(
        "/{job}/artifacts/{path:path}",
        response_class=FileResponse,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def download(job: JobName, path: str, who: Caller) -> FileResponse:
        """One of them."""
        layout = layout_of(house, await desk.find(who, job))
        file = await asyncio.to_thread(artifact, layout, path)
        return FileResponse(file, media_type="application/octet-stream", filename=file.name)

    return api


def _submission(content_type: str, body: bytes) -> Submission:
    """What was sent, as JSON or as the job file itself."""
    kind = content_type.lower()
    if any(word in kind for word in YAML):
        try:
            return Submission(file=body.decode())
        except UnicodeDecodeError as error:
            raise RequestError(f"the job file is not UTF-8 (byte {error.start})") from None
    try:
        return Submission.model_validate_json(body)
    except ValidationError as error:
        first: Mapping[str, Any] = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"][:2])
        if first["type"] == "json_invalid":
            raise RequestError(f"the body is not JSON: {first['msg']}") from None
        raise ConfigError(f"{place or 'the body'}: {first['msg']}") from None
