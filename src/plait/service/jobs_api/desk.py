"""Desk: the jobs of a house, from their submission to their end, over restarts.

A job is a row before it is acknowledged. One task leads each that has not ended: it waits for a
place among its tenant's runs, joins the launch of its base model, and writes down how it ended.
Invariants: a job's run bears the job's id; a job that has ended never begins again; closing the
desk ends no job, and what is found unended when it opens goes on at its last committed step. What
a launch does with a job is ``jobs.launch``'s.
"""

import asyncio
import hashlib
import logging
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from plait.core.errors import CLOSED, NotFound, PlaitError, RequestError, RunEnded
from plait.core.ids import JobId, RunId, TenantId
from plait.core.text import told
from plait.envs.protocol import TaskSource
from plait.envs.registry import make_source
from plait.jobs.launch import Launch
from plait.jobs.spec import JobSpec
from plait.models.tokenizer import Tokenizer
from plait.rewards import sandbox
from plait.service.heavy import Heavy
from plait.service.jobs_api.submission import Rules, job_text, read_jobs
from plait.service.ports import House, Who
from plait.store.jobs import JobRow, JobStatus
from plait.store.store import Store

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("plait.service")

PLACE_S = 1.0
"""How often a job that waits for a place among its tenant's runs looks again."""
CANCEL_S = 30.0
"""Longest that an answer waits for a cancelled job's end; it ends anyway."""
LIMITS_S = 0.5
"""How often the limits are told what jobs use: what is over one by then is waited off."""
AGAIN_S = 5.0
"""When to ask again for a launch that could not be started."""
MAX_LIVE = 2000
"""Jobs of one tenant that have not ended."""
UPLOADS = "submissions"
"""Directory of what was sent with jobs."""


@dataclass(slots=True, kw_only=True)
class _Led:
    """A job that has not ended."""

    row: JobRow
    spec: JobSpec
    waits: str = ""
    """Why it has not begun."""
    launch: Launch | None = None
    placed: bool = False
    """It counts among its tenant's runs."""
    paused: bool = False
    held: str = ""
    """Why its tenant's work is held back, while it is."""
    spent: tuple[float, int] = (0.0, 0)
    """Device-seconds and tokens that its tenant's limits know of."""
    doom: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


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
        self._led: dict[JobId, _Led] = {}
        self._tokenizers: dict[str, Tokenizer] = {}
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
                await self._stands(row, JobStatus.FAILED, why)
        await asyncio.to_thread(self._sweep, {led.spec.base_dir for led in self._led.values()})
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
        n_live = sum(led.row.tenant_id == who.tenant_id for led in self._led.values())
        if n_live >= MAX_LIVE:
            raise RequestError(f"{n_live} jobs have not ended: wait, or cancel some")
        text = job_text(file)
        name = self._draw(8) if key is None else _digest(who.tenant_id, key)
        directory = self._uploads / f"{name}-{_digest(text, *sorted(files), *files.values())}"
        models = [offer.name for offer in self._house.offers()]
        rules = Rules(models=models, allow_code=self._allow_code, can_contain=sandbox.available())
        rows: list[JobRow] = []
        try:
            async with self._heavy.turn(who.tenant_id):
                specs = await asyncio.to_thread(read_jobs, directory, text, files, rules, tenant)
                await self._check(specs)
            rows = await self._write(self._add, who.tenant_id, name, specs)
            for row in rows:
                if row.job_id not in self._led and not row.status.ended:
                    self._lead(row)
        finally:
            if not any(led.spec.base_dir == str(directory) for led in self._led.values()):
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        return [self._now(row) for row in rows]

    async def find(self, who: Who, wanted: str) -> JobRow:
        """A job of the caller's by its id, or by its name if one alone is called so."""
        row = await asyncio.to_thread(self._store.jobs.find, JobId(wanted))
        if row is not None and row.tenant_id == who.tenant_id:
            return self._now(row)
        rows = await asyncio.to_thread(self._store.jobs.list, tenant_id=who.tenant_id)
        named = [row for row in rows if row.name == wanted]
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
        """Let a paused job go on."""
        return await self._hold(who, wanted, paused=False)

    async def cancel(self, who: Who, wanted: str) -> JobRow:
        """End a job for good; what it has committed stays."""
        row = await self.find(who, wanted)
        led = self._led.get(row.job_id)
        if led is None:
            return row
        led.doom = "cancelled by its owner"
        led.changed.set()
        if led.launch is not None and row.job_id in led.launch.specs:
            with suppress(RunEnded):
                await led.launch.cancel(row.job_id, led.doom)
        if led.task is not None:
            await asyncio.wait({led.task}, timeout=CANCEL_S)
        return await asyncio.to_thread(self._store.jobs.get, row.job_id)

    def launch_of(self, row: JobRow) -> Launch | None:
        """The launch that a job has joined, if it is in one now."""
        led = self._led.get(row.job_id)
        if led is not None and led.launch is not None and row.job_id in led.launch.specs:
            return led.launch
        return None

    def waits(self, row: JobRow) -> str:
        """Why a job has not begun, or is held back."""
        led = self._led.get(row.job_id)
        return led.waits or led.held if led is not None else ""

    def _sweep(self, wanted: set[str]) -> None:
        """Remove submissions whose jobs have all ended: a crash may have come first."""
        for directory in self._uploads.iterdir() if self._uploads.is_dir() else ():
            if str(directory) not in wanted:
                shutil.rmtree(directory, ignore_errors=True)

    async def _keep_limits(self) -> None:
        """Tell the tenants' limits what jobs use, and hold jobs back that are over one."""
        while True:
            await asyncio.sleep(LIMITS_S)
            for led in list(self._led.values()):
                try:
                    self._keep(led)
                except PlaitError as error:  # its run has just ended
                    log.debug("job %s: %s", led.row.job_id, error)

    def _keep(self, led: _Led) -> None:
        launch, limits = led.launch, self._house.access.limits
        if launch is None or not launch.session.has_run(led.row.job_id):
            return
        facts, tenant_id = launch.session.run(led.row.job_id).facts, led.row.tenant_id
        before_s, before = led.spent
        if facts.tokens < before:  # another life of its launch
            before_s, before = 0.0, 0
        led.spent = facts.served_s, facts.tokens
        limits.spend(tenant_id, tokens=facts.tokens - before, device_s=facts.served_s - before_s)
        if facts.stage.ended:
            return
        hold = limits.hold(tenant_id)
        led.held = "" if hold is None else hold.reason
        paused = led.paused or bool(led.held)
        if facts.paused != paused:
            _set_paused(launch, led.row.job_id, paused)

    @property
    def _store(self) -> Store:
        return self._house.store

    @property
    def _uploads(self) -> Path:
        return self._house.directory.resolve() / UPLOADS

    async def _write(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._house.writer.write(function, *args, **kwargs)

    def _now(self, row: JobRow) -> JobRow:
        """A row as it stands: what was read may be older than what was written meanwhile."""
        led = self._led.get(row.job_id)
        return row if led is None else led.row

    async def _check(self, specs: Sequence[JobSpec]) -> None:
        """Make each environment once: what it refuses is told to who submits."""
        seen: set[str] = set()
        for spec in specs:
            key = f"{spec.model}\0{spec.environment.model_dump_json()}"
            if key in seen:
                continue
            seen.add(key)
            if spec.model not in self._tokenizers:
                (place,) = [o.model_dir for o in self._house.offers() if o.name == spec.model]
                self._tokenizers[spec.model] = await asyncio.to_thread(Tokenizer, Path(place))
            source = await asyncio.to_thread(_source, spec, self._tokenizers[spec.model])
            await source.aclose()

    def _add(self, tenant_id: TenantId, name: str, specs: Sequence[JobSpec]) -> list[JobRow]:
        jobs = [
            (
                JobId(f"j-{_digest(name, str(i))[:16]}"),
                spec.model_dump(mode="json", exclude_none=True),
            )
            for i, spec in enumerate(specs)
        ]
        with self._store.database.write():
            for job_id, spec in jobs:
                row = self._store.jobs.find(job_id)
                if row is not None and row.spec != spec:
                    raise RequestError(
                        "this Idempotency-Key was used for other jobs: use a new one"
                    )
            return [
                self._store.jobs.submit(
                    job_id, tenant_id=tenant_id, name=spec["name"], spec=spec, now=self._wall()
                )
                for job_id, spec in jobs
            ]

    def _lead(self, row: JobRow) -> None:
        spec = JobSpec.model_validate(row.spec)
        led = _Led(row=row, spec=spec, paused=row.status is JobStatus.PAUSED)
        self._led[row.job_id] = led
        led.task = asyncio.create_task(self._life(led), name=f"desk-{row.job_id}")

    async def _life(self, led: _Led) -> None:
        try:
            status, reason = await self._carry_out(led)
        except Exception as error:  # the recorder of what keeps a job from beginning
            log.warning("job %s could not begin", led.row.job_id, exc_info=error)
            status, reason = JobStatus.FAILED, told(error)
        finally:
            if led.placed:
                self._house.access.limits.give_run(led.row.tenant_id)
        if status is None:
            return
        await self._note(led, status, reason)
        del self._led[led.row.job_id]
        if not any(other.spec.base_dir == led.spec.base_dir for other in self._led.values()):
            await asyncio.to_thread(shutil.rmtree, led.spec.base_dir, ignore_errors=True)

    async def _carry_out(self, led: _Led) -> tuple[JobStatus | None, str]:
        """How it ended; no status if the house was closed around it."""
        if not await self._place(led):
            return JobStatus.CANCELLED, led.doom or ""
        while True:
            try:
                launch = await self._house.launch(led.spec.model)
            except PlaitError as error:  # NotFound too: it may be served again in another life
                if str(error) == CLOSED:
                    return None, ""
                led.waits = told(error)
                await self._pause(led)
                if led.doom is not None:
                    return JobStatus.CANCELLED, led.doom
                continue
            ended = await self._join(led, launch)
            if ended is not None:
                return ended
            led.launch, led.waits = None, "its launch is starting again"

    async def _pause(self, led: _Led) -> None:
        """Wait for another try, or for its owner to change the job."""
        led.changed.clear()
        if led.doom is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await led.changed.wait()

    async def _join(self, led: _Led, launch: Launch) -> tuple[JobStatus, str] | None:
        """How it ended in this launch; None if the launch was left before."""
        job_id, spec = led.row.job_id, self._placed(led)
        before = await asyncio.to_thread(self._store.runs.find, RunId(job_id))
        if before is not None and before.status.ended:
            return JobStatus(before.status.value), before.reason
        source = await asyncio.to_thread(_source, spec, launch.tokenizer)
        launch.add_job(spec, source, tenant_id=led.row.tenant_id)
        led.launch, led.waits = launch, ""
        if led.doom is not None:
            await launch.cancel(job_id, led.doom)
        elif led.paused:
            _set_paused(launch, job_id, True)
        else:
            await self._note(led, JobStatus.RUNNING, "")
        try:
            outcome = await launch.wait(job_id)
        except RunEnded as error:
            if str(error) != CLOSED:
                raise
            return None
        return JobStatus(outcome.stage.value), outcome.reason

    async def _place(self, led: _Led) -> bool:
        """Wait for a place among the tenant's runs; False if it was cancelled before."""
        tenant_id = led.row.tenant_id
        while led.doom is None:
            if led.paused:
                led.waits = "paused by its owner"
                await led.changed.wait()
            elif (hold := self._house.access.limits.take_run(tenant_id)) is None:
                led.placed, led.waits = True, "its launch is starting"
                return True
            else:
                led.waits = hold.reason
                with suppress(TimeoutError):
                    async with asyncio.timeout(PLACE_S):
                        await led.changed.wait()
            led.changed.clear()
        return False

    def _placed(self, led: _Led) -> JobSpec:
        """The job as the launch knows it: by its id, with its tenant's weight and priority."""
        tenant = self._house.access.tenant(led.row.tenant_id)
        return led.spec.model_copy(
            update={
                "name": str(led.row.job_id),
                "weight": led.spec.weight * tenant.weight,
                "priority": min(led.spec.priority, tenant.priority),
            }
        )

    async def _hold(self, who: Who, wanted: str, *, paused: bool) -> JobRow:
        row = await self.find(who, wanted)
        led = self._led.get(row.job_id)
        if led is None or led.doom is not None:
            raise RunEnded(f"job {wanted[:120]} has ended ({row.status}): submit it again")
        led.paused = paused
        led.changed.set()
        launch = self.launch_of(row)
        if launch is not None:
            _set_paused(launch, row.job_id, paused or bool(led.held))
        going = JobStatus.RUNNING if launch is not None else JobStatus.QUEUED
        await self._note(led, JobStatus.PAUSED if paused else going, "")
        return led.row

    async def _note(self, led: _Led, status: JobStatus, reason: str) -> None:
        led.row = await self._stands(led.row, status, reason)

    async def _stands(self, row: JobRow, status: JobStatus, reason: str) -> JobRow:
        """Write down where a job stands."""
        changed = await self._write(
            self._store.jobs.set_status,
            row.job_id,
            status,
            reason=reason,
            run_id=RunId(row.job_id),
            now=self._wall(),
        )
        await self._write(
            self._store.events.add,
            f"job_{status.value}",
            tenant_id=row.tenant_id,
            job_id=row.job_id,
            detail={"name": row.name, "reason": reason},
            now=self._wall(),
        )
        return changed


def _set_paused(launch: Launch, name: str, paused: bool) -> None:
    """A held job gives its cache back first: nobody waits for it."""
    if paused:
        launch.pause(name, at_once=False)
    else:
        launch.resume(name)


def _source(spec: JobSpec, tokenizer: Tokenizer) -> TaskSource:
    """A registered environment. Not ``jobs.named``'s way, which would let modules be found among
    the submitted files."""
    environment = spec.environment
    return make_source(environment.name, environment.config, tokenizer, spec.seed, spec.base_dir)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
