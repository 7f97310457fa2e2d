"""Samples in flight: which worker draws what, and what happens when one is lost.

A sample is re-executable: its draws are a function of its seed, so a lost worker's samples are sent
again and end as they would have; adapters that it was loading are loaded on the next one. Nothing
of them is stored.
"""

import asyncio
from dataclasses import dataclass

from plait.core.errors import PlaitError, WorkerLost
from plait.core.ids import OpId, RunId
from plait.core.operations import Done, Result, Sample, SampleResult
from plait.runtime import messages as m
from plait.runtime.facts import Roster
from plait.runtime.handle import WorkerHandle

MAX_LOSSES = 2
"""A sample that was in flight in this many crashes in a row fails instead of being tried again."""


@dataclass(slots=True)
class _InFlight:
    op: Sample
    future: asyncio.Future[SampleResult]
    losses: int = 0


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
        self._outbox.clear()
        if self._in_flight:
            worker.send(m.AddSamples(ops=tuple(f.op for f in self._in_flight.values())))

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

    def _send_soon(self, op: Sample) -> None:
        """What is asked for at the same moment is sent together: it begins in the same forward
        step, whatever the timing."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._send_outbox)
        self._outbox.append(op)

    def _send_outbox(self) -> None:
        ops = tuple(op for op in self._outbox if op.op_id in self._in_flight)
        self._outbox.clear()
        if ops and self._worker is not None:
            self._worker.send(m.AddSamples(ops=ops))

    async def load(self, run_id: RunId, version: int, path: str, op_id: OpId) -> None:
        """Make a version samplable."""
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
        return True

    def lost(self) -> None:
        """The worker is gone: what was in flight waits for the next one, or fails."""
        self._worker = None
        for op_id, entry in list(self._in_flight.items()):
            entry.losses += 1
            if entry.losses >= MAX_LOSSES and not entry.future.done():
                self._in_flight.pop(op_id)
                entry.future.set_exception(
                    WorkerLost("the rollout worker died twice under this sample: see its log")
                )
        for loading in self._loads.values():
            loading.losses += 1
            if loading.losses >= MAX_LOSSES and not loading.future.done():
                loading.future.set_exception(
                    WorkerLost("the rollout worker died twice during a publish: see its log")
                )

    def drop(self, run_id: RunId, error: PlaitError) -> None:
        """The run has ended: its samples stop and its versions are forgotten."""
        mine = [k for k, f in self._in_flight.items() if f.op.run_id == run_id]
        for op_id in mine:
            entry = self._in_flight.pop(op_id)
            if not entry.future.done():
                entry.future.set_exception(error)
        for loading in self._loads.values():
            if loading.command.run_id == run_id and not loading.future.done():
                loading.future.set_exception(error)
        if self._worker is not None:
            if mine:
                self._worker.send(m.AbortSamples(op_ids=tuple(mine)))
            for version in self._roster[run_id].published:
                self._worker.send(m.DropAdapter(run_id=run_id, version=version))
