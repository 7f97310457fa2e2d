"""Launch: several jobs on one machine, from start to end. What ``plait.open`` returns.

Owns the session (workers, store), the recorder, one reward pool and one task per job. Jobs join,
are paused and are cancelled while others run; one job's failure ends that job with its reason and
nothing else. Leaving the block stops everything; what is committed can be resumed.
"""

import asyncio
import importlib
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from plait.adapters.export import export_adapter
from plait.core.errors import ConfigError, PlaitError, RunEnded
from plait.core.ids import RunId
from plait.core.runs import LoraSpec, Stage
from plait.engines.protocol import ModelShape
from plait.envs.protocol import TaskSource
from plait.envs.registry import make_source
from plait.jobs.context import Controller, JobContext
from plait.jobs.controller import RLController
from plait.jobs.load import dump_resolved
from plait.jobs.score import Scorer
from plait.jobs.spec import JobSpec
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.models.tokenizer import Tokenizer
from plait.obs.recorder import Recorder
from plait.obs.records import LaunchInfo
from plait.policies.protocol import Sharing
from plait.policies.registry import make as make_policy
from plait.rewards.pool import RewardPool
from plait.runtime.client import RunClient
from plait.runtime.journal import LaunchJournal
from plait.runtime.session import Session
from plait.runtime.settings import Settings
from plait.store.files import truncate_jsonl


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended."""

    stage: Stage
    reason: str


class Launch:
    """Many jobs (and bare runs) on one base model; use as ``async with``."""

    def __init__(
        self,
        directory: str | Path,
        *,
        model: str = "tiny",
        policy: str | Sharing = "plait",
        settings: Settings | None = None,
    ) -> None:
        self.directory = Path(directory).resolve()
        self.model = model
        self.sharing = make_policy(policy) if isinstance(policy, str) else policy
        self._settings = settings or Settings()
        self._jobs: dict[str, asyncio.Task[Outcome]] = {}
        self.specs: dict[str, JobSpec] = {}

    async def __aenter__(self) -> Self:
        """Start the workers; errors of the model, the machine or the directory are raised here."""
        model_dir = await asyncio.to_thread(resolve, self.model)
        self.tokenizer = Tokenizer(model_dir)
        shape: ModelShape = read_shape(model_dir, name=self.model)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(self.directory, origin_s=time.monotonic())
        journal = LaunchJournal(
            self.recorder, policy=self.sharing.name, n_params=shape.n_params, now=time.monotonic
        )
        self.session = Session(
            self.directory,
            model=self.model,
            sharing=self.sharing,
            settings=self._settings,
            journal=journal,
        )
        try:
            await self.session.__aenter__()
        except BaseException:
            self.recorder.close()
            raise
        logs = self.directory / "logs"
        self.pool = await RewardPool(log=logs / "graders.log").__aenter__()
        self.recorder.launch(self._info())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the jobs still running (resumable) and the workers."""
        for task in self._jobs.values():
            task.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        await self.pool.__aexit__(None, None, None)
        await self.session.__aexit__(kind, error, trace)
        self.recorder.close()

    async def create_run(self, name: str, *, lora: LoraSpec | None = None) -> RunClient:
        """A run that the caller drives by the seven operations."""
        return await self.session.create_run(name, lora=lora)

    def add_job(self, spec: JobSpec, source: TaskSource | None = None) -> None:
        """Start a job beside those that run; ConfigError if it cannot run here."""
        if spec.name in self._jobs:
            raise ConfigError(f"there is a job {spec.name} already: choose another name")
        if spec.model != self.model:
            raise ConfigError(
                f"job {spec.name} wants model {spec.model}, this launch serves {self.model}: "
                "run jobs of different models in launches of their own"
            )
        made = source if source is not None else make_source_of(spec, self.tokenizer)
        controller = load_controller(spec)
        self.specs[spec.name] = spec
        self._jobs[spec.name] = asyncio.create_task(
            self._drive(spec, made, controller), name=f"job-{spec.name}"
        )

    def pause(self, name: str) -> None:
        """Hold a job back; its work in flight keeps its place."""
        self.session.head.set_paused(RunId(self._known(name)), True)

    def resume(self, name: str) -> None:
        """Let a paused job go on."""
        self.session.head.set_paused(RunId(self._known(name)), False)

    async def cancel(self, name: str, reason: str = "cancelled") -> Outcome:
        """End a job for good; what it has committed stays on disk."""
        task = self._jobs[self._known(name)]
        if not task.done():
            await self.session.end_run(name, Stage.CANCELLED, reason)
        return await self.wait(name)

    async def wait(self, name: str) -> Outcome:
        """How a job ended."""
        return await self._jobs[self._known(name)]

    async def wait_all(self) -> dict[str, Outcome]:
        """How every job ended, jobs added meanwhile included."""
        while pending := [t for t in self._jobs.values() if not t.done()]:
            await asyncio.wait(pending)
        return {name: task.result() for name, task in self._jobs.items()}

    def outcomes(self) -> dict[str, Outcome]:
        """How the jobs that have ended did so."""
        return {n: t.result() for n, t in self._jobs.items() if t.done() and not t.cancelled()}

    async def _drive(
        self, spec: JobSpec, source: TaskSource, controller: Callable[[JobContext], Controller]
    ) -> Outcome:
        """One job from its run's creation to its end; a failure is an outcome, no exception."""
        layout = self.recorder.layout.job(spec.name)
        try:
            layout.root.mkdir(parents=True, exist_ok=True)
            layout.config.write_text(dump_resolved(spec), encoding="utf-8")
            outcome = await self._attempt(spec, source, controller)
        except Exception as error:
            outcome = self._failure(spec.name, error)
        finally:
            await source.aclose()
        if self.session.has_run(spec.name):
            await self.session.end_run(spec.name, outcome.stage, outcome.reason)
        return outcome

    async def _attempt(
        self, spec: JobSpec, source: TaskSource, controller: Callable[[JobContext], Controller]
    ) -> Outcome:
        layout = self.recorder.layout.job(spec.name)
        client = await self.session.create_run(
            spec.name,
            lora=spec.lora(),
            weight=spec.weight,
            priority=spec.priority,
            max_staleness=spec.staleness,
            checkpoint_every=spec.checkpoint.every,
            keep_last=spec.checkpoint.keep_last,
        )
        for file in (layout.metrics, layout.samples):
            truncate_jsonl(file, client.facts.step)
        recorder = self.recorder.job(spec.name, RunId(spec.name))
        scorer = Scorer(
            self.pool,
            spec,
            self.tokenizer,
            outside=self._outside(spec.name),
            now=self.session.head.now,
        )
        context = JobContext(
            spec=spec,
            client=client,
            source=source,
            tokenizer=self.tokenizer,
            scorer=scorer,
            recorder=recorder,
            outside=self._outside(spec.name),
            max_context=self.session.shape.max_context,
            block_size=self.session.head.settings.block_size,
        )
        try:
            await scorer.check()
            stage, reason = await controller(context).run()
        finally:
            await scorer.aclose()
        await asyncio.to_thread(export_adapter, Path(client.facts.path), layout.adapter)
        return Outcome(stage=stage, reason=reason)

    def _failure(self, name: str, error: Exception) -> Outcome:
        """The one recorder of what ends a job."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, RunEnded) and self.session.has_run(name):
            facts = self.session.run(name).facts
            if facts.stage.ended:
                return Outcome(stage=facts.stage, reason=facts.reason)
        if isinstance(error, PlaitError):
            return Outcome(stage=Stage.FAILED, reason=str(error))
        log = self.directory / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as out:
            traceback.print_exception(error, file=out)
        return Outcome(stage=Stage.FAILED, reason=f"{type(error).__name__}: {error} (see {log})")

    def _outside(self, name: str) -> Callable[[str, str, float, float], None]:
        def write(what: str, key: str, t0: float, t1: float) -> None:
            self.recorder.outside(what, run=RunId(name), key=key, t0=t0, t1=t1)

        return write

    def _info(self) -> LaunchInfo:
        head = self.session.head
        return LaunchInfo(
            policy=self.sharing.name,
            model=self.model,
            started_at=time.time(),
            versions={"python": platform.python_version(), **_versions("plait", "torch")},
            machine={
                "cores": head.settings.cores,
                "memory_bytes": psutil.virtual_memory().total,
                "device": platform.processor() or platform.machine(),
            },
            peak_flops=head.peak_flops,
            settings=asdict(head.settings),
        )

    def _known(self, name: str) -> str:
        if name not in self._jobs:
            known = ", ".join(self._jobs) or "none"
            raise ConfigError(f"there is no job {name}: known are {known}")
        return name


def make_source_of(spec: JobSpec, tokenizer: Tokenizer) -> TaskSource:
    """The job's environment; ConfigError if its section is wrong."""
    with importable(spec.base_dir):
        return make_source(
            spec.environment.name, spec.environment.config, tokenizer, spec.seed, spec.base_dir
        )


def load_controller(spec: JobSpec) -> Callable[[JobContext], Controller]:
    """The job's own controller class, or the RL loop."""
    if spec.controller is None:
        return RLController
    module, _, name = spec.controller.partition(":")
    with importable(spec.base_dir):
        try:
            found: Any = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"controller {spec.controller} of job {spec.name}: {error}"
            ) from error
    return found  # type: ignore[no-any-return]


@contextmanager
def importable(directory: str) -> Iterator[None]:
    """Let ``module:name`` find files beside the job file."""
    if not directory or directory in sys.path:
        yield
        return
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
