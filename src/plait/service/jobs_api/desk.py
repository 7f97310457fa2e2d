"""Desk: the jobs of a house, from their submission to their end, over restarts.

A job is a row before it is acknowledged. One task leads each that has not ended: it waits for a
place among its tenant's runs, joins the launch of its base model, and writes down how it ended.
Invariants: a job's run bears the job's id; a job that is done or was cancelled never begins again,
one that failed goes on at its last committed step if its owner asks for that; closing the desk ends
no job, and what is found unended when it opens goes on in the same way; a job that has ended takes
nothing in memory. What a launch does with a job is ``jobs.launch``'s.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from plait.cluster import sandbox
from plait.core.errors import NotFound, PlaitError, RequestError, RunEnded
from plait.core.ids import JobId, RunId, TenantId
from plait.core.text import told
from plait.jobs.launch import Launch
from plait.jobs.spec import JobSpec
from plait.service.heavy import Heavy
from plait.service.jobs_api import allowance
from plait.service.jobs_api.course import Course
from plait.service.jobs_api.environments import Environments
from plait.service.jobs_api.led import Led
from plait.service.jobs_api.naming import digest, job_id
from plait.service.jobs_api.submission import Rules, brings_code, job_text, read_jobs
from plait.service.jobs_api.uploads import Uploads
from plait.service.ports import House, Waiting, Who
from plait.store.jobs import JobRow, JobStatus
from plait.store.rows import RunStatus
from plait.store.store import Store

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("plait.service")

CANCEL_S = 30.0
"""Longest that an answer waits for a cancelled job's end; it ends anyway."""
LIMITS_S = 0.5
"""How often the limits are told what jobs use: what is over one by then is waited off."""
MAX_LIVE = 2000
"""Jobs of one tenant that have not ended."""


class Desk:
    """All jobs of a house; use as ``async with``."""

    def __init__(
        self,
        house: House,
        *,
        allow_code: bool = False,
        draw: Callable[[int], str] = secrets.token_hex,
        wall: Callable[[], float],
    ) -> None:
        self._house, self._draw, self._wall = house, draw, wall
        self._allow_code = allow_code
        self._led: dict[JobId, Led] = {}
        self._uploads = Uploads(house.directory, house.store, wall=wall)
        self._environments = Environments(house.offers)
        self._course = Course(house, forbids=self._forbids, wall=wall)
        self._heavy = Heavy(1)
        """Reading a job file takes seconds."""

    async def __aenter__(self) -> Self:
        """Take up what has not ended."""
        for row in await asyncio.to_thread(self._store.jobs.list, live=True):
            try:
                self._lead(row)
            except ValueError as error:  # another version's: the others go on all the same
                log.warning("job %s cannot be read: %s", row.job_id, error)
                why = f"this version of plait cannot read it ({told(error)}): submit it again"
                await self._course.stands(row, JobStatus.FAILED, why)
        await self._sweep(None)
        self._keeper = asyncio.create_task(self._keep_limits(), name="desk-limits")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of the jobs as they are."""
        tasks = [self._keeper, *(led.task for led in self._led.values() if led.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def submit(
        self, who: Who, file: str | Mapping[str, Any], files: Mapping[str, str], key: str | None
    ) -> list[JobRow]:
        """The jobs of a job file, durable and queued: all of them or none. With a ``key``, asked
        again, the same ones."""
        tenant = self._house.access.tenant(who.tenant_id)
        self._check_number(who)
        name = self._draw(8) if key is None else digest(who.tenant_id, key)
        text, directory = await asyncio.to_thread(self._told, name, file, files)
        models = [offer.name for offer in self._house.offers()]
        rules = self._rules(models)
        rows: list[JobRow] = []
        try:
            async with self._heavy.turn(who.tenant_id):
                specs = await asyncio.to_thread(read_jobs, directory, text, files, rules, tenant)
                await self._environments.check(specs)
            rows = await self._write(self._add, who.tenant_id, name, specs)
            for row in rows:
                if row.job_id not in self._led and not row.status.ended:
                    self._lead(row)
        finally:
            await self._sweep(str(directory))
        return [self._now(row) for row in rows]

    def _told(
        self, name: str, file: str | Mapping[str, Any], files: Mapping[str, str]
    ) -> tuple[str, Path]:
        """A submission's job file as text, and where it is to lie."""
        text = job_text(file)
        return text, self._uploads.place(name, text, files)

    async def find(self, who: Who, wanted: str) -> JobRow:
        """A job of the caller's by its id, or by its name if one alone is called so."""
        row = await asyncio.to_thread(self._store.jobs.find, JobId(wanted))
        if row is not None and row.tenant_id == who.tenant_id:
            return self._now(row)
        named = await asyncio.to_thread(self._store.jobs.named, who.tenant_id, wanted)
        if len(named) != 1:
            more = f"{len(named)} jobs are called so: give an id" if named else "list your jobs"
            raise NotFound(f"there is no job {wanted[:120]}: {more}")
        return self._now(named[0])

    async def all_of(self, who: Who) -> list[JobRow]:
        """The caller's jobs, newest first."""
        rows = await asyncio.to_thread(self._store.jobs.list, tenant_id=who.tenant_id)
        return [self._now(row) for row in reversed(rows)]

    async def pause(self, who: Who, wanted: str) -> JobRow:
        """Hold a job back; what it has in flight ends first."""
        return await self._hold(who, wanted, paused=True)

    async def resume(self, who: Who, wanted: str) -> JobRow:
        """Let a paused job go on, or one that failed, from its last committed step."""
        row = await self.find(who, wanted)
        if row.status is not JobStatus.FAILED or row.job_id in self._led:
            return await self._hold(who, wanted, paused=False)
        self._check_number(who)
        spec = JobSpec.model_validate(row.spec)
        if not await asyncio.to_thread(Path(spec.base_dir).is_dir):
            raise RunEnded(
                f"the files of job {row.job_id} are gone, a week after it failed: submit it again"
            )
        launch = self._house.launched(spec.model)
        if launch is not None and not launch.let_go(row.job_id):
            raise RunEnded(f"job {row.job_id} has something under way yet: ask again in a while")
        row = await self._write(self._revive, row.job_id)
        if row.job_id not in self._led and not row.status.ended:
            self._lead(row)
        return self._now(row)

    async def cancel(self, who: Who, wanted: str) -> JobRow:
        """End a job for good; what it has committed stays."""
        row = await self.find(who, wanted)
        led = self._led.get(row.job_id)
        if led is None:
            return row
        led.doom = "cancelled by its owner"
        led.changed.set()
        if (launch := led.joined) is not None:
            with suppress(RunEnded):
                await launch.cancel(row.job_id, led.doom)
        if led.task is not None:
            await asyncio.wait({led.task}, timeout=CANCEL_S)
        return await asyncio.to_thread(self._store.jobs.get, row.job_id)

    def launch_of(self, row: JobRow) -> Launch | None:
        """The launch that a job has joined, if it is in one now."""
        led = self._led.get(row.job_id)
        return None if led is None else led.joined

    def waits(self, row: JobRow) -> Waiting:
        """Why a job has not begun, or is held back."""
        led = self._led.get(row.job_id)
        if led is None:
            return Waiting()
        return led.waits if led.waits.reason else Waiting(reason=led.held)

    async def _keep_limits(self) -> None:
        """Tell the tenants' limits what jobs use, and hold jobs back that are over one."""
        while True:
            await asyncio.sleep(LIMITS_S)
            for led in list(self._led.values()):
                try:
                    allowance.keep(led, self._house.access.limits)
                except PlaitError as error:  # its run has just ended
                    log.debug("job %s: %s", led.row.job_id, error)

    @property
    def _store(self) -> Store:
        return self._house.store

    async def _write(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._house.writer.write(function, *args, **kwargs)

    def _now(self, row: JobRow) -> JobRow:
        """A row as it stands: what was read may be older than what was written meanwhile."""
        led = self._led.get(row.job_id)
        return row if led is None else led.row

    def _add(self, tenant_id: TenantId, name: str, specs: Sequence[JobSpec]) -> list[JobRow]:
        jobs = [
            (job_id(name, i), spec.model_dump(mode="json", exclude_none=True))
            for i, spec in enumerate(specs)
        ]
        with self._store.database.write():
            for one, spec in jobs:
                row = self._store.jobs.find(one)
                if row is not None and row.spec != spec:
                    raise RequestError(
                        "this Idempotency-Key was used for other jobs: use a new one"
                    )
            return [
                self._store.jobs.submit(
                    one, tenant_id=tenant_id, name=spec["name"], spec=spec, now=self._wall()
                )
                for one, spec in jobs
            ]

    def _revive(self, job: JobId) -> JobRow:
        """A job that failed, and its run, are as if they had not."""
        with self._store.database.write():
            row = self._store.jobs.revive(job, now=self._wall())
            if not row.status.ended and self._store.runs.find(RunId(job)) is not None:
                self._store.runs.set_status(RunId(job), RunStatus.ACTIVE, now=self._wall())
            return row

    def _rules(self, models: Sequence[str] = ()) -> Rules:
        return Rules(models=models, allow_code=self._allow_code, can_contain=sandbox.available())

    def _forbids(self, spec: JobSpec) -> str | None:
        """Why a job that was taken may not run here now."""
        what = brings_code(spec)
        return None if what is None else self._rules().forbids(what)

    def _check_number(self, who: Who) -> None:
        n_live = sum(led.row.tenant_id == who.tenant_id for led in self._led.values())
        if n_live >= MAX_LIVE:
            raise RequestError(f"{n_live} jobs have not ended: wait, or cancel some")

    async def _sweep(self, ended: str | None) -> None:
        """Remove the files that no job needs any more."""
        live = {led.spec.base_dir for led in self._led.values()}
        await asyncio.to_thread(self._uploads.sweep, live, ended=ended)

    def _lead(self, row: JobRow) -> None:
        spec = JobSpec.model_validate(row.spec)
        led = Led(row=row, spec=spec, paused=row.status is JobStatus.PAUSED)
        self._led[row.job_id] = led
        led.task = asyncio.create_task(self._life(led), name=f"desk-{row.job_id}")

    async def _life(self, led: Led) -> None:
        try:
            status, reason = await self._course.follow(led)
        except Exception as error:  # the recorder of what keeps a job from beginning
            log.warning("job %s could not begin", led.row.job_id, exc_info=error)
            status, reason = JobStatus.FAILED, told(error)
        finally:
            if led.placed:
                self._house.access.limits.give_run(led.row.tenant_id)
        if status is None:
            return
        await self._course.ended(led, status, reason)
        del self._led[led.row.job_id]
        if led.launch is not None:
            led.launch.let_go(led.row.job_id)
        await self._sweep(led.spec.base_dir)

    async def _hold(self, who: Who, wanted: str, *, paused: bool) -> JobRow:
        row = await self.find(who, wanted)
        led = self._led.get(row.job_id)
        if led is None or led.doom is not None or led.row.status.ended:
            raise RunEnded(f"job {wanted[:120]} has ended ({row.status}): submit it again")
        led.paused = paused
        led.changed.set()
        led.hold()
        going = JobStatus.RUNNING if led.joined is not None else JobStatus.QUEUED
        await self._course.note(led, JobStatus.PAUSED if paused else going, "")
        return led.row
