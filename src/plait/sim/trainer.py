"""Trainer: slices that do one update at a time, for one run or for all that share them.

An update is one or two operations (reference, gradient) that all slices carry out together, each
with its part of the tokens; for a full-weight run the new weights are sent before the trainer is
free again. A run's state is brought to the devices before it is used, and taken off, the longest
unused first, where it would not fit beside: the move takes the trainer's time.

Invariants: one pass at a time; a destination is reserved before a move begins; state in use is
never taken off. Left to others: who is next (the dispatch policy).
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from plait.core.ids import OpId, RunId
from plait.core.runs import Stage
from plait.core.substages import Kind, Substage
from plait.core.view import DispatchView, WorkItem
from plait.policies.protocol import Dispatch, State
from plait.sim.costs.protocol import Costs
from plait.sim.heap import Heap
from plait.sim.jobs import Job
from plait.sim.record import Record
from plait.sim.worker import Fixed, Worker

NO_ID = OpId("")


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """One training-side operation of one run."""

    job: Job
    kind: str
    """``Forward`` (the reference) or ``ForwardBackward``."""
    tokens: int
    samples: int
    costs: Costs
    sync_s: float = 0.0
    """The trainer's part of sending new weights, after the gradient."""
    state_bytes: int = 0
    """Of the run on each slice."""
    offload: bool = False
    """Its state leaves the devices afterwards, to make room for rollout."""
    done: Callable[[], None]
    since_s: float = 0.0
    op_id: OpId = NO_ID

    @property
    def substage_kind(self) -> Kind:
        return Kind.REFERENCE if self.kind == "Forward" else Kind.TRAIN

    def seconds(self, n_slices: int) -> float:
        """On so many slices, each with its part."""
        tokens, samples = -(-self.tokens // n_slices), -(-self.samples // n_slices)
        if self.kind == "Forward":
            return self.costs.reference_s(tokens, samples)
        return self.costs.train_s(tokens, samples)


class Trainer:
    """Slices that update together."""

    def __init__(
        self,
        *,
        name: str,
        workers: Sequence[Worker],
        policy: Dispatch,
        heap: Heap,
        record: Record,
        ask: Callable[[Callable[[], None]], None],
        may_merge: bool = False,
        estimate: Callable[[Job], float] = lambda job: 1.0,
    ) -> None:
        """``may_merge``: gradients of several runs may share a pass. ``estimate``: by what factor a
        run's times are misjudged."""
        self.name, self.workers, self._policy = name, list(workers), policy
        self._heap, self._record, self._ask = heap, record, ask
        self._may_merge, self._estimate = may_merge, estimate
        self._jobs: dict[RunId, Job] = {}
        self._queues: dict[RunId, deque[Operation]] = {}
        self._running: list[Operation] = []
        self._resident: OrderedDict[RunId, int] = OrderedDict()
        self._state: State = {}
        self._offload_s: dict[RunId, float] = {}
        self._phases: list[tuple[Kind, float, float]] = []
        self._left = 0
        self._took_s = 0.0
        self._n_ops = 0

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def enter(self, job: Job) -> None:
        """The run's updates come here from now on."""
        self._jobs[job.run_id] = job

    def leave(self, job: Job) -> None:
        """It is over."""
        self._queues.pop(job.run_id, None)
        del self._jobs[job.run_id]
        if not any(op.job is job for op in self._running):
            self._forget(job.run_id)
        self._ask(self.decide)

    def submit(self, operation: Operation) -> None:
        """Queue an operation; in order within a run."""
        self._n_ops += 1
        operation.op_id = OpId(f"{operation.job.run_id}/{self._n_ops}")
        operation.since_s = self._heap.now
        self._queues.setdefault(operation.job.run_id, deque()).append(operation)
        self._ask(self.decide)

    def decide(self) -> None:
        """If it is free, ask the policy what comes next."""
        if self._running or not any(self._queues.values()):
            return
        if any(worker.lost for worker in self.workers):
            return
        view = DispatchView(
            items=tuple(self._item(queue[0]) for queue in self._queues.values() if queue),
            runs=tuple(job.view() for job in self._jobs.values() if job.end is None),
            resident=tuple(sorted(self._resident)),
        )
        before = self._state
        plan, self._state = self._policy.decide(view, before, self._heap.now)
        self._record.decision("dispatch", self._policy, view, before, plan)
        for wait in plan.waits:
            job = self._jobs[wait.run_id]
            if job.rollout is None:
                job.waits(wait)
        heads = {queue[0].op_id: queue for queue in self._queues.values() if queue}
        chosen = [] if plan.op_id is None else [plan.op_id, *plan.along]
        if chosen:
            self._begin([heads[op_id].popleft() for op_id in chosen])

    def stopped(self) -> None:
        """A worker is gone: what ran begins again, and no state is on the devices any more."""
        running, self._running = self._running, []
        for worker in self.workers:
            worker.stop(self.name)
        for operation in reversed(running):
            if operation.job.end is None:
                queue = self._queues.setdefault(operation.job.run_id, deque())
                queue.appendleft(operation)
        for run_id in list(self._resident):
            self._forget(run_id)
        self._phases, self._took_s = [], 0.0
        self._ask(self.decide)

    def _item(self, operation: Operation) -> WorkItem:
        factor = self._estimate(operation.job)
        merges = self._may_merge and operation.kind == "ForwardBackward"
        return WorkItem(
            op_id=operation.op_id,
            run_id=operation.job.run_id,
            kind=operation.kind,
            est_s=operation.seconds(len(self.workers)) * factor,
            tokens=operation.tokens,
            waiting_since_s=operation.since_s,
            rows=operation.tokens if merges else 0,
            switch_s=self._switch_s(operation) * factor,
        )

    def _switch_s(self, operation: Operation) -> float:
        """Bringing its state here, and taking off whose place it needs."""
        if operation.job.run_id in self._resident:
            return 0.0
        return operation.costs.load_s() + sum(self._offload_s[r] for r in self._evicted(operation))

    def _evicted(self, operation: Operation, keep: Collection[RunId] = ()) -> list[RunId]:
        """Whose state has to go, the longest unused first."""
        free = min(worker.free_bytes for worker in self.workers)
        out: list[RunId] = []
        for run_id, n_bytes in self._resident.items():
            if free >= operation.state_bytes:
                break
            if run_id not in keep:
                free += n_bytes
                out.append(run_id)
        return out

    def _begin(self, together: list[Operation]) -> None:
        self._running = together
        move_s = 0.0
        runs = [operation.job.run_id for operation in together]
        for operation in together:
            job = operation.job
            job.served(0.0)
            job.set_stage(train=Stage.TRAIN)
            if job.run_id in self._resident:
                self._resident.move_to_end(job.run_id)
                continue
            for run_id in self._evicted(operation, runs):
                move_s += self._offload_s[run_id]
                self._forget(run_id)
            move_s += operation.costs.load_s()
            for worker in self.workers:
                worker.reserve(self._what(job.run_id), operation.state_bytes)
            self._resident[job.run_id] = operation.state_bytes
            self._offload_s[job.run_id] = operation.costs.offload_s()
        first, n = together[0], len(self.workers)
        whole = replace(
            first,
            tokens=sum(operation.tokens for operation in together),
            samples=sum(operation.samples for operation in together),
        )
        backward = 0 if first.kind == "Forward" else whole.tokens
        self._phases = [
            (Kind.MOVE, move_s, 0.0),
            (first.substage_kind, whole.seconds(n), first.costs.flops(whole.tokens, backward) / n),
            (Kind.MOVE, first.sync_s, 0.0),
        ]
        if first.offload:
            self._phases.append((Kind.MOVE, first.costs.offload_s(), 0.0))
        self._next_phase()

    def _next_phase(self) -> None:
        while self._phases:
            kind, seconds, flops = self._phases.pop(0)
            if seconds > 0.0:
                break
        else:
            self._finish()
            return
        first = self._running[0]
        self._left = len(self.workers)
        self._took_s += seconds
        for worker in self.workers:
            substage = Substage(
                key=f"{first.op_id}/{kind}",
                run_id=first.job.run_id,
                worker=worker.worker_id,
                kind=kind,
                work_s=seconds,
                tokens=first.tokens,
                n_samples=first.samples,
            )
            worker.start(
                Fixed(
                    name=self.name,
                    substage=substage,
                    seconds=seconds,
                    flops=flops,
                    done=partial(self._phase_done, worker),
                )
            )

    def _phase_done(self, worker: Worker, _: Fixed) -> None:
        worker.stop(self.name)
        self._left -= 1
        if self._left == 0:
            self._next_phase()

    def _finish(self) -> None:
        done, self._running = self._running, []
        device_s = self._took_s * sum(worker.n_devices for worker in self.workers)
        self._took_s = 0.0
        for operation in done:
            job = operation.job
            if operation.offload or job.end is not None:
                self._forget(job.run_id)
            if job.end is None:
                job.served(device_s / len(done))
                job.set_stage(train=Stage.WAIT_TRAIN)
                operation.done()
        self._ask(self.decide)

    def _forget(self, run_id: RunId) -> None:
        if self._resident.pop(run_id, None) is not None:
            for worker in self.workers:
                worker.release(self._what(run_id))

    def _what(self, run_id: RunId) -> str:
        return f"{self.name}/{run_id}"
