"""Head: the live loop. Facts in, views to the policies, plans out to the workers.

One head per launch and base model. It owns the roster, the gate (admission), the training queues
(dispatch) and the samples in flight, and connects them to a pool of workers. What is durable goes
through ``runtime.client``; nothing here touches the store.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from plait.core import errors
from plait.core.errors import CLOSED, EngineError, PlaitError, RunEnded
from plait.core.ids import OpId, RunId, WorkerId
from plait.core.operations import Result
from plait.core.runs import RunSpec, Stage
from plait.engines.protocol import ModelShape
from plait.policies.protocol import Sharing
from plait.runtime import messages as m
from plait.runtime.facts import Roster, RunFacts
from plait.runtime.gate import Gate
from plait.runtime.guests import is_guest
from plait.runtime.handle import WorkerHandle
from plait.runtime.journal import Journal
from plait.runtime.moves import Moves
from plait.runtime.pool import Pool
from plait.runtime.samples import Samples
from plait.runtime.settings import Settings
from plait.runtime.tool_waits import ToolWaits
from plait.runtime.trainers import Trainers

TICK_S = 0.5
"""How often policies are asked without a cause, so that ageing takes effect."""

_BY_CODE = {
    cls.code: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, PlaitError)
}


class Head:
    """Runs share one base model on this machine."""

    def __init__(
        self,
        *,
        model_dir: Path,
        shape: ModelShape,
        sharing: Sharing,
        settings: Settings,
        launch_dir: Path,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.shape, self.sharing = shape, sharing
        self.settings = settings.resolve(shape)
        self.journal = journal
        self._clock, self.wall = clock, wall
        self.roster = Roster()
        self.samples = Samples(self.roster)
        self.gate = Gate(
            self.roster,
            sharing.admission,
            budget_blocks=self.settings.kv_blocks,
            now=clock,
            journal=journal,
        )
        self.tool_waits = ToolWaits(sharing.residency, self.samples, now=clock, journal=journal)
        self.pool = Pool(
            model_dir=model_dir,
            topology=sharing.topology,
            settings=self.settings,
            launch_dir=launch_dir,
            on_answer=self._answer,
            on_lost=self._lost,
            on_attached=self._attached,
            on_given_up=self.give_up,
        )
        self._moves = Moves(
            sharing.moves,
            self.samples,
            shape=shape,
            settings=self.settings,
            now=clock,
            journal=journal,
        )
        self.queue = Trainers(
            self.roster,
            sharing,
            self.pool.training,
            now=clock,
            journal=journal,
            may_share=not settings.deterministic,
        )
        self._ticker: asyncio.Task[None] | None = None
        self.last_spans: dict[WorkerId, m.Span] = {}
        self.busy_s: dict[WorkerId, float] = {}
        self.started_s = clock()
        self.peak_flops = 0.0

    async def start(self) -> None:
        """Start the workers; WorkerLost if one cannot start."""
        self.peak_flops = (await self.pool.start()).peak_flops
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def stop(self) -> None:
        """Refuse what is under way and whatever is asked for from now on, and stop the workers;
        what is committed stays."""
        self.roster.close()
        for facts in self.roster.all():
            self._refuse(facts.spec.run_id, RunEnded(CLOSED))
        self.samples.drop_guests(RunEnded(CLOSED))
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        await self.pool.stop()

    def add(self, spec: RunSpec) -> RunFacts:
        """Enter a run."""
        facts = self.roster.add(spec, self._clock())
        self.journal.event(
            spec.run_id, "added", job=spec.run_id, priority=spec.priority, weight=spec.weight
        )
        return facts

    def end(self, run_id: RunId, stage: Stage, reason: str = "") -> None:
        """End a run for good: its queued and running work is refused with the reason."""
        facts = self.roster[run_id]
        if facts.stage.ended:
            return
        facts.end, facts.reason, facts.told = stage, reason, None
        facts.since_s = self._clock()
        self._refuse(run_id, RunEnded(f"run {run_id} is {stage}: {reason or 'finished'}"))
        facts.rollout = facts.train = None
        kind = "finished" if stage is Stage.DONE else stage.value
        self.journal.event(run_id, kind, reason=reason)
        self._decide()

    def let_go(self, run_id: RunId) -> bool:
        """Free what an idle run holds here: its state on the worker, its published versions. It can
        be entered again. False, and nothing done, while something of it is under way."""
        facts = self.roster[run_id]
        if self.queue.has(run_id) or self.samples.has(run_id) or facts.rollout is not None:
            return False
        for version in () if facts.stage.ended else sorted(facts.published):
            self.samples.drop_version(run_id, version)
        self.queue.let_go(run_id)
        self.roster.remove(run_id)
        self.journal.event(run_id, "let_go")
        return True

    def _refuse(self, run_id: RunId, error: PlaitError) -> None:
        """Answer everything that the run waits for with an error."""
        self.gate.refuse(run_id, error)
        self.queue.drop(run_id, error)
        self.samples.drop(run_id, error)

    def set_paused(self, run_id: RunId, paused: bool, *, at_once: bool = True) -> None:
        """Hold a run's work back (or let it go on) without touching the others.

        What it is drawing stops where it is and keeps its cache; not ``at_once``: it is drawn to
        its end, so that the cache is free for others while the run is held.
        """
        facts = self.roster[run_id]
        facts.check_live()
        if facts.paused == paused:
            return
        facts.paused = paused
        facts.pace.spoiled()
        if at_once or not paused:
            self.samples.set_paused(run_id, paused)
        self.journal.event(run_id, "paused" if paused else "resumed")
        self._decide()

    def now(self) -> float:
        return self._clock()

    def _decide(self) -> None:
        self.gate.decide()
        self.queue.decide()
        self._moves.decide()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._decide()

    def _answer(self, handle: WorkerHandle, answer: m.Answer) -> None:
        match answer:
            case m.Finished():
                self.pool.answered()
                self._finished(handle.worker_id, answer.op_id, answer.result, answer.seconds)
            case m.Failed():
                error = _BY_CODE.get(answer.code, EngineError)(answer.message)
                self._finished(handle.worker_id, answer.op_id, error, 0.0)
            case m.Report():
                for span in answer.spans:
                    self._account(handle, span)
                self._moves.decide()
            case m.Exported():
                self.samples.moved(answer.moved)
            case m.Drawn():
                self.samples.drawn(answer)

    def _finished(
        self, worker_id: WorkerId, op_id: OpId, result: Result | PlaitError, seconds: float
    ) -> None:
        if not self.queue.finished(worker_id, op_id, result, seconds):
            self.samples.finished(worker_id, op_id, result)
            self._moves.decide()

    def _account(self, handle: WorkerHandle, span: m.Span) -> None:
        """Charge a span to the runs it served: device-seconds by their share of its tokens."""
        self.last_spans[handle.worker_id] = span
        busy_s = self.busy_s.get(handle.worker_id, 0.0)
        self.busy_s[handle.worker_id] = busy_s + span.t1 - span.t0
        self.journal.span(handle.worker_id, span)
        self.tool_waits.reported(handle.worker_id, span)
        self._moves.reported(handle.worker_id, span)
        device_s = (span.t1 - span.t0) * span.threads / self.settings.cores
        total = sum(span.tokens_by_run.values()) or len(span.tokens_by_run)
        for run_id, tokens in span.tokens_by_run.items():
            facts = self.roster.get(run_id)
            if is_guest(run_id):
                self.samples.guests.charge(run_id, device_s * (tokens or 1) / total, tokens)
            if facts is None:
                continue
            facts.served(span.kind, device_s * (tokens or 1) / total, tokens)
        for run_id in span.short_of_blocks:
            facts = self.roster.get(run_id)
            if facts is not None:
                facts.kv_throttled = True
        for run_id, block_s in span.kv_block_s_by_run.items():
            facts = self.roster.get(run_id)
            if facts is not None:
                facts.kv_block_s += block_s
                facts.kv_held[handle.worker_id] = block_s / max(span.t1 - span.t0, 1e-9)
                held = round(sum(facts.kv_held.values()))
                facts.kv_peak_blocks = max(facts.kv_peak_blocks, held)

    def _attached(self, handle: WorkerHandle) -> None:
        self.journal.event(None, "worker_ready", worker=handle.worker_id, pid=handle.pid)
        if handle.config.rollout:
            self.samples.attach(handle)
        if handle.config.train:
            self.queue.attach(handle)

    def _lost(self, handle: WorkerHandle, why: str) -> None:
        self.journal.event(None, "worker_lost", worker=handle.worker_id, why=why)
        if handle.config.rollout:
            self.samples.lost(handle.worker_id)
            self.tool_waits.lost(handle.worker_id)
            self._moves.lost(handle.worker_id)
        if handle.config.train:
            self.queue.lost(handle.worker_id)

    def give_up(self, error: PlaitError) -> None:
        """Nothing can go on here: every run ends with the reason, resumable; none can be added."""
        self.roster.closed = error
        self.samples.drop_guests(error)
        for facts in self.roster.all():
            if not facts.stage.ended:
                self.end(facts.spec.run_id, Stage.FAILED, str(error))
