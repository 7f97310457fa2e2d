"""Launch: several jobs on one machine, from start to end. What ``plait.open`` returns.

Owns the directory's lock, the session (workers, store), the recorder, the reward pool and one task
per job. Jobs join, are paused and are cancelled while others run; one job's failure ends that job
with its reason and nothing else. A job is written down before anything is done for it, so that a
launch that is killed at any moment is resumed with all its jobs. Leaving the block stops
everything; what is committed can be resumed.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from plait.core.errors import CLOSED, ConfigError, PlaitError, RequestError, RunEnded, StoreError
from plait.core.ids import LOCAL_TENANT, RunId, TenantId
from plait.core.runs import LoraSpec, Stage
from plait.engines.protocol import ModelShape
from plait.envs.protocol import TaskSource
from plait.jobs.about import about
from plait.jobs.life import Job, Life, Outcome
from plait.jobs.load import dump_resolved
from plait.jobs.named import load_controller, make_source_of
from plait.jobs.room import room_of
from plait.jobs.spec import JobSpec
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.models.tokenizer import Tokenizer
from plait.obs.recorder import Recorder
from plait.obs.records import LaunchInfo
from plait.policies.protocol import Sharing
from plait.policies.registry import DEFAULT
from plait.policies.registry import make as make_policy
from plait.rewards.pool import RewardPool
from plait.runtime.client import RunClient
from plait.runtime.journal import LaunchJournal
from plait.runtime.session import Session, Shared
from plait.runtime.settings import Settings
from plait.store.files import disk_errors, write_whole
from plait.store.lock import LaunchLock

__all__ = ["Launch", "Outcome"]


class Launch:
    """Many jobs (and bare runs) on one base model; use as ``async with``."""

    def __init__(
        self,
        directory: str | Path,
        *,
        model: str = "tiny",
        policy: str | Sharing = DEFAULT,
        settings: Settings | None = None,
        planned: Sequence[JobSpec] = (),
        shared: Shared | None = None,
    ) -> None:
        """``planned``: jobs that have been checked (``preflight``) and will be added, written down
        before the workers start. ``shared``: a store that is not this launch's alone: a service's,
        whose users' functions run in a sandbox, and which keeps no account of every step."""
        self.directory = Path(directory).resolve()
        self.model = model
        self.sharing = make_policy(policy) if isinstance(policy, str) else policy
        self._settings = settings or Settings()
        self._planned = tuple(planned)
        self._shared = shared
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._leaving: set[str] = set()
        """Jobs that were let go and whose runs still have something under way."""
        self._refusal: PlaitError | None = RequestError(
            "the launch is not open: use it as `async with plait.open(…) as p:`"
        )
        """Why nothing can be asked for, unless it can."""

    @property
    def specs(self) -> dict[str, JobSpec]:
        """The jobs added so far."""
        return {name: job.spec for name, job in self._jobs.items()}

    async def __aenter__(self) -> Self:
        """Start the workers; errors of the model, the machine or the directory are raised here."""
        model_dir = await asyncio.to_thread(resolve, self.model)
        self.tokenizer = Tokenizer(model_dir)
        self._shape: ModelShape = read_shape(model_dir, name=self.model)
        self._settings = self._settings.resolve(self._shape)
        async with AsyncExitStack() as stack:
            stack.enter_context(LaunchLock(self.directory))
            logs = self.directory / "logs"
            with disk_errors(logs):
                logs.mkdir(exist_ok=True)
            self.recorder = Recorder(
                self.directory,
                origin_s=time.monotonic(),
                policy_options=self.sharing.options,
                sparse=self._shared is not None,
            )
            stack.callback(self.recorder.close)
            self._info = about(
                self.recorder.layout,
                sharing=self.sharing,
                model=self.model,
                settings=self._settings,
                alone=self._shared is None,
                wall=time.time,
            )
            self._write_down(self._planned)
            journal = self._journal(asyncio.get_running_loop())
            stack.callback(journal.close)
            pool = await stack.enter_async_context(
                RewardPool(log=logs / "graders.log", sandboxed=self._shared is not None)
            )
            self.session = Session(
                self.directory,
                model=self.model,
                sharing=self.sharing,
                settings=self._settings,
                journal=journal,
                locked=True,
                shared=self._shared,
            )
            await stack.enter_async_context(self.session)
            self._info["peak_flops"] = self.session.head.peak_flops
            runs = () if self._shared is not None else self.session.store.runs.list()
            self._begun = {run.name: int(run.progress.get("step", 0)) for run in runs}
            self._write_down(())
            self._life = Life(
                session=self.session,
                recorder=self.recorder,
                pool=pool,
                tokenizer=self.tokenizer,
                room=room_of(self._shape, self._settings),
            )
            stack.push_async_callback(self._stop_jobs)
            self._stack = stack.pop_all()
        self._refusal = None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the jobs still running (resumable) and the workers. Whoever waits for something
        here, or asks for it later, is told that the launch is closed."""
        self._refusal = RunEnded(CLOSED)
        await self._stack.aclose()

    async def create_run(self, name: str, *, lora: LoraSpec | None = None) -> RunClient:
        """A run that the caller drives by the seven operations."""
        self._check_open()
        return await self.session.create_run(name, lora=lora)

    def add_job(
        self,
        spec: JobSpec,
        source: TaskSource | None = None,
        *,
        tenant_id: TenantId = LOCAL_TENANT,
    ) -> None:
        """Start a job beside those that run; ConfigError if it cannot run here.

        It is checked first as ``plait run`` checks it: what that would refuse is how it ends.
        """
        self._check_open()
        if spec.name in self._jobs:
            raise ConfigError(f"there is a job {spec.name} already: choose another name")
        if spec.model != self.model:
            raise ConfigError(
                f"job {spec.name} wants model {spec.model}, this launch serves {self.model}: "
                "run jobs of different models in launches of their own"
            )
        job = Job(
            spec=spec,
            source=source if source is not None else make_source_of(spec, self.tokenizer),
            controller=load_controller(spec),
            checked=spec in self._planned,
            tenant_id=tenant_id,
        )
        if spec not in self._planned:
            self._write_down((spec,))
        self._jobs[spec.name] = job
        self._tasks[spec.name] = asyncio.create_task(self._life.lead(job), name=f"job-{spec.name}")

    def begun(self, name: str) -> int:
        """Steps of a job that an earlier life of the launch has committed."""
        return self._begun.get(name, 0)

    def pause(self, name: str, *, at_once: bool = True) -> None:
        """Hold a job back; its work in flight keeps its place (not ``at_once``: is done first)."""
        self._set_paused(name, True, at_once=at_once)

    def resume(self, name: str) -> None:
        """Let a paused job go on."""
        self._set_paused(name, False)

    async def cancel(self, name: str, reason: str = "cancelled") -> Outcome:
        """End a job for good; what it has committed stays on disk."""
        job = self._known(name)
        if not self._tasks[name].done():
            job.doom = reason
            with suppress(RunEnded):
                self._set_paused(name, False)  # what is left of it must be able to end
            has_run = self.session.has_run(name)
            if has_run:
                await self.session.end_run(name, Stage.CANCELLED, reason)
            if job.work is not None and (has_run or job.checking):
                job.work.cancel()
        return await self.wait(name)

    async def wait(self, name: str) -> Outcome:
        """How a job ended; RunEnded if the launch was left before it did. Giving up the wait does
        nothing to the job."""
        self._known(name)
        await asyncio.wait({self._tasks[name]})
        return _outcome(self._tasks[name])

    async def wait_all(self) -> dict[str, Outcome]:
        """How every job ended, jobs added meanwhile included."""
        while pending := [t for t in self._tasks.values() if not t.done()]:
            await asyncio.wait(pending)
        return {name: _outcome(task) for name, task in self._tasks.items()}

    def let_go(self, name: str) -> bool:
        """Forget a job that has ended, so that a launch without an end does not grow; what it has
        committed stays, and it can be added again. False while its run cannot be: something of it
        is still under way on a worker."""
        if name in self._jobs:
            if not self._tasks[name].done():
                return False
            del self._jobs[name], self._tasks[name]
            self.recorder.forget(name)
            self._info["jobs"] = tuple(job for job in self._info["jobs"] if job != name)
            self._leaving.add(name)
        self._leaving = {job for job in self._leaving if not self.session.let_go(job)}
        return name not in self._leaving

    def outcomes(self) -> dict[str, Outcome]:
        """How the jobs that have ended did so."""
        return {n: t.result() for n, t in self._tasks.items() if t.done() and not t.cancelled()}

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _set_paused(self, name: str, paused: bool, *, at_once: bool = True) -> None:
        job = self._known(name)
        job.paused = paused = paused and job.doom is None
        if self.session.has_run(name):
            self.session.head.set_paused(RunId(name), paused, at_once=at_once)

    async def _stop_jobs(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _journal(self, loop: asyncio.AbstractEventLoop) -> LaunchJournal:
        def give_up(error: StoreError) -> None:
            # Not at once: the head is in the middle of what it was writing about.
            loop.call_soon(lambda: self.session.head.give_up(error))

        return LaunchJournal(
            self.recorder,
            policy=self.sharing.name,
            n_params=self._shape.n_params,
            now=time.monotonic,
            on_broken=give_up,
        )

    def _write_down(self, specs: Sequence[JobSpec]) -> None:
        """Keep the jobs' configurations, then ``launch.json``, which names them."""
        for spec in specs:
            layout = self.recorder.layout.job(spec.name)
            with disk_errors(layout.root):
                layout.root.mkdir(parents=True, exist_ok=True)
            write_whole(layout.config, [dump_resolved(spec)])
        jobs = dict.fromkeys((*self._info["jobs"], *(spec.name for spec in specs)))
        self._info["jobs"] = tuple(jobs)
        self.recorder.launch(LaunchInfo(**self._info))

    def _known(self, name: str) -> Job:
        if name not in self._jobs:
            known = ", ".join(self._jobs) or "none"
            raise ConfigError(f"there is no job {name}: known are {known}")
        return self._jobs[name]


def _outcome(task: asyncio.Task[Outcome]) -> Outcome:
    if task.cancelled():
        raise RunEnded(CLOSED)
    return task.result()
