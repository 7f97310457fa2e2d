"""Samples in flight: which worker draws what, and what happens when one is lost.

A sample is re-executable: its draws are a function of its seed, so a lost worker's samples are sent
again and end as they would have; adapters that it was loading are loaded on the next one. Nothing
of them is stored. Samples that keep killing workers are found out by ``Suspects`` and fail, with
those of their run; other runs wait for that and lose nothing.
"""

import asyncio
from dataclasses import dataclass, field

from plait.core.errors import PlaitError, WorkerLost
from plait.core.ids import OpId, RunId, WorkerId
from plait.core.operations import Done, Result, Sample, SampleResult
from plait.core.plan import Keep
from plait.policies.placement import Homes, place
from plait.runtime import messages as m
from plait.runtime.facts import Roster
from plait.runtime.handle import WorkerHandle
from plait.runtime.suspects import MAX_LOSSES, Suspects


@dataclass(slots=True)
class _InFlight:
    op: Sample
    future: asyncio.Future[SampleResult]
    worker: WorkerId | None = None
    """Where it has been sent."""


@dataclass(slots=True)
class _Loading:
    command: m.LoadAdapter
    future: asyncio.Future[None]
    waiting: set[WorkerId] = field(default_factory=set)
    """Workers that have been told and have not answered."""
    done: bool = False
    """Some worker has it."""
    losses: int = 0

    def settle(self) -> None:
        """Over once every worker that was told has answered, or is gone."""
        if self.done and not self.waiting and not self.future.done():
            self.future.set_result(None)


class Samples:
    """All sample operations of one base model, on its rollout workers."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._workers: dict[WorkerId, WorkerHandle] = {}
        self._homes = Homes()
        self._in_flight: dict[OpId, _InFlight] = {}
        self._loads: dict[OpId, _Loading] = {}
        self._outbox: list[Sample] = []
        self._outbox_due = False
        self._suspects = Suspects()

    def attach(self, worker: WorkerHandle) -> None:
        """Use this worker from now on: adapters are loaded, and samples sent that have none."""
        self._workers[worker.worker_id] = worker
        for facts in self._roster.all():
            if facts.stage.ended or facts.version is None:
                continue
            for version in sorted(facts.published):
                path = facts.version_path(version)
                op_id = OpId(f"reload/{facts.spec.run_id}/{version}")
                worker.send(
                    m.LoadAdapter(op_id=op_id, run_id=facts.spec.run_id, version=version, path=path)
                )
            if facts.paused:
                worker.send(m.SetPaused(run_id=facts.spec.run_id, paused=True))
        for loading in self._loads.values():
            worker.send(loading.command)
            loading.waiting.add(worker.worker_id)
        self._outbox = [f.op for f in self._in_flight.values() if f.worker is None]
        self._send_outbox()

    async def sample(self, ops: tuple[Sample, ...]) -> tuple[SampleResult, ...]:
        """Draw a batch; aborted on the worker if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        futures = []
        for op in ops:
            self._roster[op.run_id].check_live()
            entry = _InFlight(op, loop.create_future())
            self._in_flight[op.op_id] = entry
            futures.append(entry.future)
            self._send_soon(op)
        try:
            return tuple([await f for f in futures])
        finally:
            self._abort([f for op in ops if (f := self._in_flight.pop(op.op_id, None))])
            for future in futures:
                if not future.done():
                    future.cancel()
                elif not future.cancelled():
                    future.exception()
            self._send_held()

    def _send_soon(self, op: Sample) -> None:
        """What is asked for at the same moment is sent together: it begins in the same forward
        step, whatever the timing."""
        self._outbox.append(op)
        if not self._outbox_due:
            self._outbox_due = True
            asyncio.get_running_loop().call_soon(self._send_outbox)

    def _send_outbox(self) -> None:
        self._outbox_due = False
        ops = [op for op in self._outbox if op.op_id in self._in_flight]
        self._outbox.clear()
        if not self._workers:
            return
        wanting = (f.op.run_id for f in self._in_flight.values())
        allowed = self._suspects.may_send(
            [r for r in wanting if not self._roster[r].paused], self._at_work()
        )
        if allowed is not None:
            self._outbox = [op for op in ops if op.run_id not in allowed]
            ops = [op for op in ops if op.run_id in allowed]
        for worker_id, mine in self._placed(ops).items():
            self._workers[worker_id].send(m.AddSamples(ops=tuple(mine)))

    def _placed(self, ops: list[Sample]) -> dict[WorkerId, list[Sample]]:
        """Samples by the worker that is to draw them."""
        loads = dict.fromkeys(self._workers, 0)
        for entry in self._in_flight.values():
            if entry.worker is not None:
                loads[entry.worker] += entry.op.n
        placed: dict[WorkerId, list[Sample]] = {}
        for op in ops:
            policy = (op.run_id, op.version)
            matches = self._homes.matches(policy, op.prompt) if len(loads) > 1 else {}
            worker_id = place(matches, loads)
            if len(loads) > 1:
                self._homes.put(policy, op.prompt, worker_id)
            loads[worker_id] += op.n
            self._in_flight[op.op_id].worker = worker_id
            placed.setdefault(worker_id, []).append(op)
        return placed

    def _send_held(self) -> None:
        """Something has changed for samples that are held back for a suspect."""
        if self._outbox and not self._outbox_due:
            self._send_outbox()

    def _at_work(self, worker_id: WorkerId | None = None) -> set[RunId]:
        """Runs whose samples take part in forward steps, of one worker or any; those of paused runs
        do not."""
        runs = {
            f.op.run_id
            for f in self._in_flight.values()
            if f.worker is not None and worker_id in (None, f.worker)
        }
        return {r for r in runs if not self._roster[r].paused}

    async def load(self, run_id: RunId, version: int, path: str, op_id: OpId) -> None:
        """Make a version samplable."""
        self._roster[run_id].check_live()
        command = m.LoadAdapter(op_id=op_id, run_id=run_id, version=version, path=path)
        future = asyncio.get_running_loop().create_future()
        loading = _Loading(command, future, waiting=set(self._workers))
        self._loads[op_id] = loading
        self._tell(command)
        try:
            await loading.future
        finally:
            self._loads.pop(op_id, None)

    def drop_version(self, run_id: RunId, version: int) -> None:
        """Forget a version on the worker once its last sample has ended."""
        self._tell(m.DropAdapter(run_id=run_id, version=version))

    def mark_prefix(
        self, run_id: RunId, version: int | None, tokens: tuple[int, ...], keep: Keep
    ) -> None:
        """Tell whoever has some of ``tokens`` in its cache how soon that may be given up."""
        self._tell(m.MarkPrefix(run_id=run_id, version=version, tokens=tokens, keep=keep))

    def set_paused(self, run_id: RunId, paused: bool) -> None:
        """Keep a run's samples out of forward steps, or let them in again."""
        self._tell(m.SetPaused(run_id=run_id, paused=paused))
        self._send_held()

    def finished(self, worker_id: WorkerId, op_id: OpId, result: Result | PlaitError) -> bool:
        """Take a worker's answer; False if the operation is not one of ours."""
        loading = self._loads.get(op_id)
        if loading is not None:
            loading.waiting.discard(worker_id)
            if isinstance(result, PlaitError):
                if not loading.future.done():
                    loading.future.set_exception(result)
            else:
                loading.done = True
                loading.settle()
            return True
        entry = self._in_flight.pop(op_id, None)
        if entry is None:
            return op_id.startswith("reload/") or isinstance(result, SampleResult | Done)
        if not entry.future.done():
            if isinstance(result, PlaitError):
                entry.future.set_exception(result)
            elif isinstance(result, SampleResult):
                entry.future.set_result(result)
        self._suspects.clear(entry.op.run_id)
        self._send_held()
        return True

    def lost(self, worker_id: WorkerId) -> None:
        """A worker is gone: what it had in flight goes to another, waits for the next, or fails."""
        self._workers.pop(worker_id, None)
        self._homes.forget(worker_id)
        at_work = self._at_work(worker_id)
        culprit = self._suspects.lost(at_work)
        for entry in self._in_flight.values():
            if entry.worker == worker_id:
                entry.worker = None
                self._send_soon(entry.op)
        if culprit is not None:
            self._fail(
                culprit,
                WorkerLost(
                    f"the rollout worker died again and again under samples of run {culprit}, "
                    "the last time under nothing else: see its log"
                ),
            )
        elif not at_work:
            self._charge_loads(worker_id)
        for loading in self._loads.values():
            loading.waiting.discard(worker_id)
            loading.settle()

    def _fail(self, run_id: RunId, error: PlaitError) -> list[_InFlight]:
        """End a run's samples with an error; which ones."""
        mine = [f for f in self._in_flight.values() if f.op.run_id == run_id]
        for entry in mine:
            del self._in_flight[entry.op.op_id]
            if not entry.future.done():
                entry.future.set_exception(error)
        self._suspects.clear(run_id)
        return mine

    def _charge_loads(self, worker_id: WorkerId) -> None:
        for loading in self._loads.values():
            loading.losses += worker_id in loading.waiting
            if loading.losses >= MAX_LOSSES and not loading.future.done():
                loading.future.set_exception(
                    WorkerLost("the rollout worker died twice during a publish: see its log")
                )

    def drop(self, run_id: RunId, error: PlaitError) -> None:
        """The run has ended: its samples stop and its versions are forgotten."""
        mine = self._fail(run_id, error)
        for loading in self._loads.values():
            if loading.command.run_id == run_id and not loading.future.done():
                loading.future.set_exception(error)
        self._abort(mine)
        for version in self._roster[run_id].published:
            self._tell(m.DropAdapter(run_id=run_id, version=version))
        self._send_held()

    def _abort(self, entries: list[_InFlight]) -> None:
        for worker_id, worker in self._workers.items():
            ids = tuple(f.op.op_id for f in entries if f.worker == worker_id)
            if ids:
                worker.send(m.AbortSamples(op_ids=ids))

    def _tell(self, command: m.Command) -> None:
        for worker in self._workers.values():
            worker.send(command)
