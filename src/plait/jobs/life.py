"""Life: one job from its run's creation to its end. Its failure is an outcome, not an exception.

Also the job's standing orders: a job may be paused or cancelled at any moment, before its run
exists too.
"""

import asyncio
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from plait.adapters.export import export_adapter
from plait.core.errors import ConfigError, PlaitError, RunEnded, StoreError
from plait.core.ids import LOCAL_TENANT, RunId, TenantId
from plait.core.runs import Stage
from plait.core.text import told, writable
from plait.envs.closing import close_source
from plait.envs.contain import contained
from plait.envs.declared import Declared, read_declared
from plait.envs.opening import open_source
from plait.envs.protocol import TaskSource
from plait.jobs.account import Account, settle
from plait.jobs.context import Controller, JobContext
from plait.jobs.preflight import check_job
from plait.jobs.room import Room
from plait.jobs.score import Scorer
from plait.jobs.spec import JobSpec
from plait.models.tokenizer import Tokenizer
from plait.obs.recorder import JobRecorder, Recorder
from plait.obs.trackers import Background, make_tracker
from plait.rewards.pool import RewardPool
from plait.runtime.client import RunClient
from plait.runtime.session import Session

PROJECT = "plait"
"""What trackers call the project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended."""

    stage: Stage
    reason: str


@dataclass(slots=True, kw_only=True)
class Job:
    """A job and what its owner wants of it."""

    spec: JobSpec
    source: TaskSource
    controller: Callable[[JobContext], Controller]
    tenant_id: TenantId = LOCAL_TENANT
    checked: bool = False
    """Whoever added it has found nothing wrong with it (``preflight``)."""
    checking: bool = False
    """That is being done now, and its run not made yet."""
    paused: bool = False
    doom: str | None = None
    """Why it was cancelled, if it was."""
    work: "asyncio.Task[Outcome] | None" = None
    """What to stop when it is: the job may be waiting for a tool that takes for ever."""


class Life:
    """Leads jobs to their ends; what all jobs of a launch share."""

    def __init__(
        self,
        *,
        session: Session,
        recorder: Recorder,
        pool: RewardPool,
        tokenizer: Tokenizer,
        room: Room,
    ) -> None:
        self._session, self._recorder, self._pool = session, recorder, pool
        self._tokenizer, self._room = tokenizer, room

    async def lead(self, job: Job) -> Outcome:
        """The job's whole life. Cancelling this leaves the job as it was last committed."""
        name = job.spec.name
        job.work = asyncio.create_task(self._attempt(job), name=f"work-{name}")
        try:
            outcome = await job.work
        except asyncio.CancelledError:
            if job.doom is None:
                raise
            outcome = Outcome(stage=Stage.CANCELLED, reason=job.doom)
            if not self._session.has_run(name):  # a resume must find it cancelled
                await self._create_run(job)
        except Exception as error:
            outcome = self._failure(name, error)
            if job.doom is not None:  # whatever its end has made of what was under way
                outcome = Outcome(stage=Stage.CANCELLED, reason=job.doom)
        finally:
            await self._close(job)
        if self._session.has_run(name):
            try:
                await self._session.end_run(name, outcome.stage, outcome.reason)
            except StoreError as error:
                if outcome.stage is Stage.DONE:
                    return Outcome(stage=Stage.FAILED, reason=str(error))
        return outcome

    async def _close(self, job: Job) -> None:
        """Close the job's environment. If that fails it is written down and changes no outcome."""
        if (error := await close_source(job.source)) is not None:
            name = job.spec.name
            text = f"closing its environment: {self._failure(name, error).reason}"
            self._session.head.journal.event(RunId(name), "error", text=text)

    async def _attempt(self, job: Job) -> Outcome:
        spec = job.spec
        layout = self._recorder.layout.job(spec.name)
        await self._check(job)
        declared = read_declared(job.source)
        client = await self._create_run(job)
        if job.doom is not None:
            await self._session.end_run(spec.name, Stage.CANCELLED, job.doom)
        client.facts.check_live()
        if job.paused:
            self._session.head.set_paused(RunId(spec.name), True)
        account = await asyncio.to_thread(settle, layout, client.facts.step)
        recorder = self._recorder.job(spec.name, RunId(spec.name))
        async with AsyncExitStack() as stack:
            stack.callback(recorder.close)
            context = self._context(job, declared, client, recorder, account)
            stack.push_async_callback(context.scorer.aclose)
            for tracker in self._trackers(spec, recorder):
                stack.push_async_callback(asyncio.to_thread, tracker.finish)
            await context.scorer.check()
            with contained("the controller"):
                ended = await job.controller(context).run()
            stage, reason = _ending(ended)
        await asyncio.to_thread(export_adapter, Path(client.facts.path), layout.adapter)
        return Outcome(stage=stage, reason=reason)

    async def _check(self, job: Job) -> None:
        job.checking = True
        try:
            await open_source(job.source)
            if not job.checked:
                await check_job(
                    job.spec,
                    job.source,
                    room=self._room,
                    tokenizer=self._tokenizer,
                    pool=self._pool,
                )
        finally:
            job.checking = False

    async def _create_run(self, job: Job) -> RunClient:
        spec = job.spec
        return await self._session.create_run(
            spec.name,
            lora=spec.lora(),
            weight=spec.weight,
            priority=spec.priority,
            max_staleness=spec.staleness,
            checkpoint_every=spec.checkpoint.every,
            keep_last=spec.checkpoint.keep_last,
            keep_best=spec.checkpoint.keep_best,
            tenant_id=job.tenant_id,
        )

    def _context(
        self,
        job: Job,
        declared: Declared,
        client: RunClient,
        recorder: JobRecorder,
        account: Account,
    ) -> JobContext:
        spec = job.spec
        outside, settings = self._outside(spec.name), self._session.head.settings
        scorer = Scorer(
            self._pool, spec, self._tokenizer, outside=outside, now=self._session.head.now
        )
        return JobContext(
            spec=spec,
            client=client,
            source=job.source,
            declared=declared,
            tokenizer=self._tokenizer,
            scorer=scorer,
            recorder=recorder,
            outside=outside,
            account=account,
            room=self._room,
            block_size=settings.block_size,
            vocab_size=self._session.head.shape.vocab_size,
            deterministic=settings.deterministic,
        )

    def _failure(self, name: str, error: Exception) -> Outcome:
        """The one recorder of what ends a job."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, RunEnded) and self._session.has_run(name):
            facts = self._session.run(name).facts
            if facts.stage.ended:
                return Outcome(stage=facts.stage, reason=facts.reason)
        reason = told(error)
        if isinstance(error, PlaitError):
            return Outcome(stage=Stage.FAILED, reason=reason)
        log = self._recorder.layout.root / "logs" / f"{name}.log"
        try:
            with log.open("a", encoding="utf-8", errors="backslashreplace") as out:
                traceback.print_exception(error, file=out)
        except OSError:
            return Outcome(stage=Stage.FAILED, reason=reason)
        return Outcome(stage=Stage.FAILED, reason=f"{reason} (see {log})")

    def _trackers(self, spec: JobSpec, recorder: JobRecorder) -> list[Background]:
        def report(text: str) -> None:
            self._recorder.event(
                "tracker", now=self._session.head.now(), run=recorder.run_id, text=text
            )

        config = spec.model_dump(mode="json")
        trackers = [
            Background(
                lambda name=name: make_tracker(  # type: ignore[misc]
                    name,
                    project=PROJECT,
                    run_name=spec.name,
                    config=config,
                    directory=recorder.layout.root,
                    report=report,
                ),
                report,
            )
            for name in spec.trackers
        ]
        recorder.trackers = tuple(trackers)
        return trackers

    def _outside(self, name: str) -> Callable[[str, str, float, float], None]:
        def write(what: str, key: str, t0: float, t1: float) -> None:
            self._recorder.outside(what, run=RunId(name), key=key, t0=t0, t1=t1)

        return write


def _ending(returned: object) -> tuple[Stage, str]:
    """What a controller's ``run`` returned, which may be a user's: how the job ended, and why."""
    match returned:
        case (Stage() as stage, str() as reason) if stage.ended:
            return stage, writable(reason)
    raise ConfigError(
        f"the controller's run() returned {type(returned).__name__}: return (Stage.DONE, why)"
    )
