"""Samples in flight: which worker draws what, and what happens when one is lost.

A sample is re-executable: its draws are a function of its seed, so a lost worker's samples are sent
again and end as they would have. Nothing of them is stored. One that moves is its old worker's
until the head has it and then the new one's, so it is drawn once, whichever of the two dies.
Samples that keep killing workers are found out by ``Suspects`` and fail, with those of their run;
other runs wait for that and lose nothing.
"""

import asyncio
from collections.abc import Callable, Sequence

from plait.core.errors import PlaitError, WorkerLost
from plait.core.ids import OpId, RunId, WorkerId
from plait.core.operations import Done, Result, Sample, SampleResult
from plait.core.plan import Keep
from plait.core.view import MovableSample
from plait.engines.moved import Moved
from plait.policies.routing import Homes, place
from plait.runtime import messages as m
from plait.runtime.facts import Roster
from plait.runtime.guests import Guests, is_guest
from plait.runtime.handle import WorkerHandle
from plait.runtime.in_flight import InFlight
from plait.runtime.loads import Loads
from plait.runtime.suspects import Suspects


class Samples:
    """All sample operations of one base model, on its rollout workers."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.guests = Guests()
        self._workers: dict[WorkerId, WorkerHandle] = {}
        self._homes = Homes()
        self._in_flight: dict[OpId, InFlight] = {}
        self._loads = Loads()
        self._doomed: set[tuple[RunId, int]] = set()
        """Versions to be forgotten once their last sample has ended: until then any worker may be
        asked to draw it."""
        self._outbox: list[Sample] = []
        self._outbox_due = False
        self._suspects = Suspects()

    def attach(self, worker: WorkerHandle) -> None:
        """Use this worker from now on: adapters are loaded, and samples sent that have none."""
        self._workers[worker.worker_id] = worker
        for facts in self._roster.all():
            if facts.stage.ended or facts.version is None:
                continue
            doomed = {v for run_id, v in self._doomed if run_id == facts.spec.run_id}
            for version in sorted(facts.published | doomed):
                path = facts.version_path(version)
                op_id = OpId(f"reload/{facts.spec.run_id}/{version}")
                worker.send(
                    m.LoadAdapter(op_id=op_id, run_id=facts.spec.run_id, version=version, path=path)
                )
            if facts.paused:
                worker.send(m.SetPaused(run_id=facts.spec.run_id, paused=True))
        for (run_id, guest_version), path in self.guests.paths.items():
            op_id = OpId(f"reload/{run_id}/{guest_version}")
            version = guest_version or 0
            worker.send(m.LoadAdapter(op_id=op_id, run_id=run_id, version=version, path=path))
        self._loads.attach(worker)
        self._outbox = [f.op for f in self._in_flight.values() if f.worker is None]
        self._send_outbox()

    async def sample(
        self, ops: tuple[Sample, ...], *, on_drawn: Callable[[m.Drawn], None] | None = None
    ) -> tuple[SampleResult, ...]:
        """Draw a batch; aborted on the worker if the caller is cancelled. ``on_drawn`` is told of
        the tokens of watched ones as they come: after a loss or a move, perhaps of some again."""
        loop = asyncio.get_running_loop()
        futures = []
        for op in ops:
            self._check_live(op.run_id)
            entry = InFlight(op, loop.create_future(), on_drawn=on_drawn)
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
            [r for r in wanting if not self._is_paused(r)], self._at_work()
        )
        if allowed is not None:
            self._outbox = [op for op in ops if op.run_id not in allowed]
            ops = [op for op in ops if op.run_id in allowed]
        for worker_id, mine in self._placed(ops).items():
            self._workers[worker_id].send(m.AddSamples(ops=tuple(mine)))

    def _placed(self, ops: list[Sample]) -> dict[WorkerId, list[Sample]]:
        """Samples by the worker that is to draw them."""
        loads = self.loads()
        placed: dict[WorkerId, list[Sample]] = {}
        for op in ops:
            policy = (op.run_id, op.version)
            matches = self._homes.matches(policy, op.prompt) if len(loads) > 1 else {}
            worker_id = place(matches, loads)
            if len(loads) > 1:
                self._homes.put(policy, op.prompt, worker_id)
            loads[worker_id] += op.n
            self._in_flight[op.op_id].place(worker_id)
            placed.setdefault(worker_id, []).append(op)
        return placed

    def has(self, run_id: RunId) -> bool:
        """True while a sample of the run is under way."""
        return any(f.op.run_id == run_id for f in self._in_flight.values())

    def loads(self) -> dict[WorkerId, int]:
        """Samples under way on each worker, or on their way there."""
        loads = dict.fromkeys(self._workers, 0)
        for entry in self._in_flight.values():
            there = entry.target if entry.target in loads else entry.worker
            if there is not None:
                loads[there] += entry.op.n
        return loads

    def stepped(self, worker_id: WorkerId, n_steps: int) -> None:
        """A worker has made forward steps."""
        for entry in self._in_flight.values():
            if entry.worker == worker_id:
                entry.n_steps += n_steps

    def movable(self) -> tuple[MovableSample, ...]:
        """What could go on at another worker: what takes part in forward steps and is not moving.
        None while a worker's death is being looked into."""
        if self._suspects.any():
            return ()
        entries = [f for f in self._in_flight.values() if not self._is_paused(f.op.run_id)]
        return tuple(movable for f in entries if (movable := f.movable()) is not None)

    def move(self, op_ids: Sequence[OpId], source: WorkerId, target: WorkerId, *, kv: bool) -> None:
        """Have samples go on at ``target``; ``kv``: with their keys and values."""
        for op_id in op_ids:
            self._in_flight[op_id].target = target
        self._workers[source].send(m.ExportSamples(op_ids=tuple(op_ids), kv=kv))

    def moved(self, moved: Moved) -> None:
        """A worker has given up a sample that is to go on elsewhere."""
        entry = self._in_flight.get(moved.op.op_id)
        if entry is None or entry.target is None:
            return
        there = entry.target
        entry.place(there, max(len(s.tokens) for s in moved.samples))
        self._homes.put(entry.policy, entry.op.prompt, there)
        self._workers[there].send(m.ImportSample(moved=moved))

    def _send_held(self) -> None:
        """Something has changed for samples that are held back for a suspect, or for versions that
        are kept for samples."""
        if self._doomed:
            wanted = {f.policy for f in self._in_flight.values()}
            for run_id, version in self._doomed - wanted:
                self.guests.paths.pop((run_id, version), None)
                self.guests.forget(run_id)
                self._tell(m.DropAdapter(run_id=run_id, version=version))
            self._doomed &= wanted
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
        return {r for r in runs if not self._is_paused(r)}

    def _is_paused(self, run_id: RunId) -> bool:
        return not is_guest(run_id) and self._roster[run_id].paused

    def _check_live(self, run_id: RunId) -> None:
        if is_guest(run_id):
            self._roster.check_open()
        else:
            self._roster[run_id].check_live()

    async def load(self, run_id: RunId, version: int, path: str, op_id: OpId) -> None:
        """Make a version samplable."""
        self._check_live(run_id)
        if is_guest(run_id):
            self._doomed.discard((run_id, version))
            self.guests.paths[run_id, version] = path
        command = m.LoadAdapter(op_id=op_id, run_id=run_id, version=version, path=path)
        await self._loads.load(command, self._workers.values())

    def drop_version(self, run_id: RunId, version: int) -> None:
        """Forget a version on the workers once its last sample has ended."""
        self._doomed.add((run_id, version))
        self._send_held()

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
        error = result if isinstance(result, PlaitError) else None
        if self._loads.finished(worker_id, op_id, error):
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

    def drawn(self, news: m.Drawn) -> None:
        """A watched sample has drawn something."""
        entry = self._in_flight.get(news.op_id)
        if entry is not None and entry.on_drawn is not None:
            entry.on_drawn(news)

    def lost(self, worker_id: WorkerId) -> None:
        """A worker is gone: what it had in flight goes to another, waits for the next, or fails."""
        self._workers.pop(worker_id, None)
        self._homes.forget(worker_id)
        at_work = self._at_work(worker_id)
        culprit = self._suspects.lost(at_work)
        for entry in self._in_flight.values():
            if entry.worker == worker_id:
                entry.place(None)
                self._send_soon(entry.op)
            elif entry.target == worker_id:
                entry.target = entry.worker
        if culprit is not None:
            self._fail(
                culprit,
                WorkerLost(
                    f"the rollout worker died again and again under samples of run {culprit}, "
                    "the last time under nothing else: see its log"
                ),
            )
        self._loads.lost(worker_id, blamed=not at_work)
        self._send_held()

    def _fail(self, run_id: RunId, error: PlaitError) -> list[InFlight]:
        """End a run's samples with an error; which ones."""
        mine = [f for f in self._in_flight.values() if f.op.run_id == run_id]
        for entry in mine:
            del self._in_flight[entry.op.op_id]
            if not entry.future.done():
                entry.future.set_exception(error)
        self._suspects.clear(run_id)
        return mine

    def drop(self, run_id: RunId, error: PlaitError) -> None:
        """The run has ended: its samples stop and its versions are forgotten."""
        mine = self._fail(run_id, error)
        self._loads.drop(run_id, error)
        self._abort(mine)
        for version in self._roster[run_id].published:
            self._tell(m.DropAdapter(run_id=run_id, version=version))
        self._send_held()

    def drop_guests(self, error: PlaitError) -> None:
        """Nothing is sampled here any more: guests' samples end with the reason."""
        for run_id in {f.op.run_id for f in self._in_flight.values() if is_guest(f.op.run_id)}:
            self._abort(self._fail(run_id, error))
        for run_id, _ in self.guests.paths:
            self._loads.drop(run_id, error)

    def _abort(self, entries: list[InFlight]) -> None:
        for worker_id, worker in self._workers.items():
            ids = tuple(f.op.op_id for f in entries if f.worker == worker_id)
            if ids:
                worker.send(m.AbortSamples(op_ids=ids))

    def _tell(self, command: m.Command) -> None:
        for worker in self._workers.values():
            worker.send(command)
