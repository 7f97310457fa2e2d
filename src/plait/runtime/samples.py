"""Samples in flight: which worker draws what, and what happens when one is lost.

A sample is re-executable: its draws are a function of its seed, so a lost worker's samples are sent
again and end as they would have; adapters that it was loading are loaded on the next one. Nothing
of them is stored. Samples that keep killing workers are found out by ``Suspects`` and fail, with
those of their run; other runs wait for that and lose nothing.
"""

import asyncio
from dataclasses import dataclass

from plait.core.errors import PlaitError, WorkerLost
from plait.core.ids import OpId, RunId
from plait.core.operations import Done, Result, Sample, SampleResult
from plait.runtime import messages as m
from plait.runtime.facts import Roster
from plait.runtime.handle import WorkerHandle
from plait.runtime.suspects import MAX_LOSSES, Suspects


@dataclass(slots=True)
class _InFlight:
    op: Sample
    future: asyncio.Future[SampleResult]
    sent: bool = False


@dataclass(slots=True)
class _Loading:
    command: m.LoadAdapter
    future: asyncio.Future[None]
    losses: int = 0


class Samples:
    """All sample operations of one base model, on one rollout worker."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._worker: WorkerHandle | None = None
        self._in_flight: dict[OpId, _InFlight] = {}
        self._loads: dict[OpId, _Loading] = {}
        self._outbox: list[Sample] = []
        self._outbox_due = False
        self._suspects = Suspects()

    def attach(self, worker: WorkerHandle) -> None:
        """Use this worker from now on: its adapters are loaded and its samples sent again."""
        self._worker = worker
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
        self._outbox = [f.op for f in self._in_flight.values()]
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
            left = tuple(op.op_id for op in ops if self._in_flight.pop(op.op_id, None))
            for future in futures:
                if not future.done():
                    future.cancel()
                elif not future.cancelled():
                    future.exception()
            if left and self._worker is not None:
                self._worker.send(m.AbortSamples(op_ids=left))
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
        if self._worker is None:
            return
        wanting = (f.op.run_id for f in self._in_flight.values())
        allowed = self._suspects.may_send(
            [r for r in wanting if not self._roster[r].paused], self._at_work()
        )
        if allowed is not None:
            self._outbox = [op for op in ops if op.run_id not in allowed]
            ops = [op for op in ops if op.run_id in allowed]
        for op in ops:
            self._in_flight[op.op_id].sent = True
        if ops:
            self._worker.send(m.AddSamples(ops=tuple(ops)))

    def _send_held(self) -> None:
        """Something has changed for samples that are held back for a suspect."""
        if self._outbox and not self._outbox_due:
            self._send_outbox()

    def _at_work(self) -> set[RunId]:
        """Runs whose samples take part in forward steps; those of paused runs do not."""
        runs = {f.op.run_id for f in self._in_flight.values() if f.sent}
        return {r for r in runs if not self._roster[r].paused}

    async def load(self, run_id: RunId, version: int, path: str, op_id: OpId) -> None:
        """Make a version samplable."""
        self._roster[run_id].check_live()
        command = m.LoadAdapter(op_id=op_id, run_id=run_id, version=version, path=path)
        loading = _Loading(command, asyncio.get_running_loop().create_future())
        self._loads[op_id] = loading
        if self._worker is not None:
            self._worker.send(command)
        try:
            await loading.future
        finally:
            self._loads.pop(op_id, None)

    def drop_version(self, run_id: RunId, version: int) -> None:
        """Forget a version on the worker once its last sample has ended."""
        if self._worker is not None:
            self._worker.send(m.DropAdapter(run_id=run_id, version=version))

    def set_paused(self, run_id: RunId, paused: bool) -> None:
        """Keep a run's samples out of forward steps, or let them in again."""
        if self._worker is not None:
            self._worker.send(m.SetPaused(run_id=run_id, paused=paused))
        self._send_held()

    def finished(self, op_id: OpId, result: Result | PlaitError) -> bool:
        """Take the worker's answer; False if the operation is not one of ours."""
        loading = self._loads.get(op_id)
        if loading is not None:
            if not loading.future.done():
                if isinstance(result, PlaitError):
                    loading.future.set_exception(result)
                else:
                    loading.future.set_result(None)
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

    def lost(self) -> None:
        """The worker is gone: what was in flight waits for the next one, or fails."""
        self._worker = None
        at_work = self._at_work()
        culprit = self._suspects.lost(at_work)
        for entry in self._in_flight.values():
            entry.sent = False
        if culprit is not None:
            self._fail(
                culprit,
                WorkerLost(
                    f"the rollout worker died again and again under samples of run {culprit}, "
                    "the last time under nothing else: see its log"
                ),
            )
        elif not at_work:
            self._charge_loads()

    def _fail(self, run_id: RunId, error: PlaitError) -> tuple[OpId, ...]:
        """End a run's samples with an error; which ones."""
        mine = tuple(k for k, f in self._in_flight.items() if f.op.run_id == run_id)
        for op_id in mine:
            entry = self._in_flight.pop(op_id)
            if not entry.future.done():
                entry.future.set_exception(error)
        self._suspects.clear(run_id)
        return mine

    def _charge_loads(self) -> None:
        for loading in self._loads.values():
            loading.losses += 1
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
        if self._worker is not None:
            if mine:
                self._worker.send(m.AbortSamples(op_ids=mine))
            for version in self._roster[run_id].published:
                self._worker.send(m.DropAdapter(run_id=run_id, version=version))
        self._send_held()
