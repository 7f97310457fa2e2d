"""Runs: what a tenant has on the machine, jobs and clients' models alike, and why it waits."""

import asyncio
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path

from plait.core.errors import NotFound
from plait.core.ids import JobId
from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.jobs_api.desk import Desk
from plait.service.jobs_api.standing import (
    facts_of,
    model_of_job,
    run_facts,
    why_asked,
    why_job,
    why_view,
)
from plait.service.jobs_api.views import (
    Limit,
    Offset,
    RunLineView,
    RunsView,
    WhyView,
    iso,
    page,
)
from plait.service.names import MODEL_ID, model_of, run_of
from plait.service.ports import House
from plait.store.jobs import JobRow
from plait.store.rows import RunRow

ASLEEP = "asleep"
"""A client's model that is on the disk and no more; its next request wakes it."""
RunName = Annotated[
    str, Path(min_length=1, max_length=160, description="A model's id, a job's id or name")
]


def router(house: House, desk: Desk, now: Callable[[], float]) -> APIRouter:
    """Routes under ``/v1/runs``."""
    api = APIRouter(prefix="/runs", tags=["runs"], responses=responses())

    @api.get("")
    async def all_runs(who: Caller, limit: Limit = 100, offset: Offset = 0) -> RunsView:
        """The caller's runs, newest first."""
        rows: list[RunRow] = await asyncio.to_thread(house.store.runs.list, tenant_id=who.tenant_id)
        jobs = {row.job_id: row for row in await desk.all_of(who)}
        shown = page(rows[::-1], limit, offset)
        lines = [_line(house, desk, row, jobs.get(JobId(row.run_id))) for row in shown]
        return RunsView(runs=lines, total=len(rows))

    @api.get("/{run}/why")
    async def why(run: RunName, who: Caller) -> WhyView:
        """What a run waits for."""
        if MODEL_ID.fullmatch(run) is None:
            return why_job(house, desk, await desk.find(who, run), now())
        try:
            model = await house.models.model(who, run)
        except NotFound:
            if (waiting := await house.requests.waits(who, run)) is None:
                raise
            return why_asked(run, waiting)
        waiting = await house.requests.waits(who, run)
        try:
            facts = run_facts(house, model.base_model, run_of(run))
        except NotFound:
            if waiting is not None:
                return why_asked(run, waiting)
            reason = "it failed: nothing more can be trained on it" if model.corrupted else ""
            return WhyView(
                run_id=run,
                stage="failed" if model.corrupted else ASLEEP,
                waiting_for="",
                reason=reason or "nothing is asked of it: its next request wakes it",
                position=None,
                expected_s=None,
                since_s=None,
            )
        view = why_view(house, run, facts, now())
        if not view.waiting_for and waiting is not None and waiting.reason:
            view = view.model_copy(update={"waiting_for": "request", "reason": waiting.reason})
        return view

    return api


def _line(house: House, desk: Desk, row: RunRow, job: JobRow | None) -> RunLineView:
    model = str(row.spec.get("base_model", ""))
    if job is not None:
        facts = facts_of(desk, job)
        ended = job.status.value
        name, model = job.name, model_of_job(job)
    else:
        try:
            facts = run_facts(house, model, row.run_id)
        except NotFound:
            facts = None
        ended, name = row.status.value if row.status.ended else ASLEEP, ""
    live = facts is not None and not facts.stage.ended
    wait = facts.wait if facts is not None and live else None
    return RunLineView(
        run_id=model_of(row.run_id) if job is None else row.run_id,
        kind="client" if job is None else "job",
        name=name,
        model=model,
        stage=facts.stage.value if facts is not None and live else ended,
        step=max(facts.step if facts is not None else 0, int(row.progress.get("step", 0))),
        waiting_for=wait.reason if wait is not None else "",
        updated_at=iso(row.updated_at),
    )
