"""Trainer: slices that do updates one after another, for one run or for all that share them.

An update is one or two operations (reference, gradient) that all slices carry out together, each
with its part of the tokens; for a full-weight run the new weights are sent before the trainer is
free again. A run's state is brought to the devices before it is used (``resident``): the move takes
the trainer's time.

Each run has the slices that it was bound to, all or some. The policy is offered what could begin at
once; an update that has been overtaken too often on some of its slices has them kept free.

Invariants: one pass at a time on a slice. Left to others: who is next (the dispatch policy).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from plait.core.ids import OpId, RunId
from plait.core.plan import DispatchPlan, Wait, reasons
from plait.core.runs import Stage
from plait.core.substages import Kind, Substage
from plait.core.view import DispatchView, WorkItem
from plait.policies.fairness import AGE_GRANTS
from plait.policies.protocol import Dispatch, State
from plait.sim.heap import Heap
from plait.sim.jobs import Job
from plait.sim.operation import Operation, Pass
from plait.sim.record import Record
from plait.sim.resident import Resident
from plait.sim.spec import JobSpec
from plait.sim.worker import Fixed, Worker


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
        self._on: dict[RunId, list[Worker]] = {}
        self._queues: dict[RunId, deque[Operation]] = {}
        self._passes: list[Pass] = []
        self._busy: dict[Worker, Pass] = {}
        self._resident = Resident(name, self._on)
        self._state: State = {}
        self._n_ops = 0
        for worker in self.workers:
            worker.on_lost.append(partial(self.stopped, worker))
            worker.on_back.append(partial(ask, self.decide))

    def enter(self, job: Job, workers: Sequence[Worker] | None = None) -> None:
        """The run's updates come here from now on, and run on these of the slices."""
        self._jobs[job.run_id] = job
        self._on[job.run_id] = list(workers if workers is not None else self.workers)

    def leave(self, job: Job) -> None:
        """It is over."""
        self._queues.pop(job.run_id, None)
        del self._jobs[job.run_id]
        if not any(job.run_id in p.runs for p in self._passes):
            self._resident.forget(job.run_id)
        self._ask(self.decide)

    def bound(self, worker: Worker) -> int:
        """Runs that train on a slice."""
        return sum(worker in self._on[run_id] for run_id in self._jobs)

    def part(self, spec: JobSpec) -> list[Worker]:
        """Neighbouring slices on which the fewest runs train: PlexRL's affinity is to nodes."""
        n = max(1, spec.train_devices // self.workers[0].n_devices)
        bound = [self.bound(worker) for worker in self.workers]
        at = min(range(0, len(self.workers) - n + 1, n), key=lambda i: sum(bound[i : i + n]))
        return self.workers[at : at + n]

    def submit(self, operation: Operation) -> None:
        """Queue an operation; in order within a run."""
        self._n_ops += 1
        operation.op_id = OpId(f"{operation.job.run_id}/{self._n_ops}")
        operation.since_s = self._heap.now
        self._queues.setdefault(operation.job.run_id, deque()).append(operation)
        self._ask(self.decide)

    def decide(self) -> None:
        """While slices are free, ask the policy what comes next on them."""
        while self._decide_one():
            pass

    def stopped(self, worker: Worker) -> None:
        """A slice is gone: what ran there begins again, and no state is on it any more."""
        running = self._busy.get(worker)
        if running is not None:
            self._passes.remove(running)
            for other in running.workers:
                other.stop(self._activity(running))
                self._busy.pop(other, None)
            for operation in reversed(running.operations):
                if operation.job.end is None:
                    queue = self._queues.setdefault(operation.job.run_id, deque())
                    queue.appendleft(operation)
        for run_id in self._resident.on(worker):
            self._resident.forget(run_id)
        self._ask(self.decide)

    def _decide_one(self) -> bool:
        heads = {q[0].op_id: q for q in self._queues.values() if q and self._is_free(q[0])}
        kept = {
            worker
            for queue in self._queues.values()
            if queue and queue[0].overtaken >= AGE_GRANTS
            for worker in self._on[queue[0].job.run_id]
            if queue[0].op_id not in heads
        }
        if kept:
            heads = {
                op_id: queue
                for op_id, queue in heads.items()
                if kept.isdisjoint(self._on[queue[0].job.run_id])
            }
        if not heads:
            return False
        view = DispatchView(
            items=tuple(self._item(queue[0]) for queue in heads.values()),
            runs=tuple(job.view() for job in self._jobs.values()),
            resident=self._resident.ids(),
        )
        before = self._state
        plan, self._state = self._policy.decide(view, before, self._heap.now)
        self._record.decision("dispatch", self._policy, view, before, plan)
        for run_id, reason in reasons(plan.waits):
            job = self._jobs[run_id]
            if job.rollout is None:
                job.waits(Wait(run_id=run_id, reason=reason))
        if plan.op_id is None:
            return False
        self._begin([heads[op_id].popleft() for op_id in self._together(plan, heads)])
        return True

    def _together(self, plan: DispatchPlan, heads: Mapping[OpId, deque[Operation]]) -> list[OpId]:
        """What runs in the next pass: as many of those that may go along as have room together."""
        assert plan.op_id is not None
        out = [plan.op_id]
        if not plan.along:
            return out
        workers = self._on[heads[plan.op_id][0].job.run_id]
        room = min(w.free_bytes + self._resident.bytes_on(w) for w in workers)
        room -= heads[plan.op_id][0].state_bytes
        for op_id in plan.along:
            room -= heads[op_id][0].state_bytes
            if room < 0:
                break
            out.append(op_id)
        return out

    def _is_free(self, operation: Operation) -> bool:
        return not any(w in self._busy or w.lost for w in self._on[operation.job.run_id])

    def _item(self, operation: Operation) -> WorkItem:
        factor = self._estimate(operation.job)
        merges = self._may_merge and operation.kind == "ForwardBackward"
        return WorkItem(
            op_id=operation.op_id,
            run_id=operation.job.run_id,
            kind=operation.kind,
            est_s=operation.seconds() * factor,
            tokens=operation.tokens,
            waiting_since_s=operation.since_s,
            rows=operation.tokens if merges else 0,
            switch_s=self._resident.switch_s(operation) * factor,
        )

    def _begin(self, together: list[Operation]) -> None:
        first = together[0]
        workers = self._on[first.job.run_id]
        for queue in self._queues.values():
            if queue and not set(workers).isdisjoint(self._on[queue[0].job.run_id]):
                queue[0].overtaken += not self._is_free(queue[0])
        move_s = 0.0
        runs = [operation.job.run_id for operation in together]
        for operation in together:
            job = operation.job
            job.served(0.0)
            job.set_stage(train=Stage.TRAIN)
            for seconds in self._resident.bring(operation, runs):
                move_s += seconds
        whole = replace(
            first,
            tokens=sum(operation.tokens for operation in together),
            samples=sum(operation.samples for operation in together),
        )
        backward = 0 if first.kind == "Forward" else whole.tokens
        flops = first.costs.flops(whole.tokens, backward) / len(workers)
        running = Pass(
            operations=together,
            workers=workers,
            phases=[
                (Kind.MOVE, move_s, 0.0),
                (first.substage_kind, whole.seconds(), flops),
                (Kind.MOVE, first.sync_s, 0.0),
            ],
        )
        if first.offload:
            running.phases.append((Kind.MOVE, first.costs.offload_s(), 0.0))
        self._passes.append(running)
        for worker in workers:
            self._busy[worker] = running
        self._next_phase(running)

    def _next_phase(self, running: Pass) -> None:
        while running.phases:
            kind, seconds, flops = running.phases.pop(0)
            if seconds > 0.0:
                break
        else:
            self._finish(running)
            return
        first = running.operations[0]
        running.left = len(running.workers)
        running.took_s += seconds
        for worker in running.workers:
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
                    name=self._activity(running),
                    substage=substage,
                    seconds=seconds,
                    flops=flops,
                    done=partial(self._phase_done, running, worker),
                )
            )

    def _phase_done(self, running: Pass, worker: Worker, _: Fixed) -> None:
        worker.stop(self._activity(running))
        running.left -= 1
        if running.left == 0:
            self._next_phase(running)

    def _finish(self, running: Pass) -> None:
        self._passes.remove(running)
        for worker in running.workers:
            del self._busy[worker]
        device_s = running.took_s * sum(worker.n_devices for worker in running.workers)
        for operation in running.operations:
            job = operation.job
            if operation.offload or job.end is not None:
                self._resident.forget(job.run_id)
            if job.end is None:
                job.served(device_s / len(running.operations))
                job.set_stage(train=Stage.WAIT_TRAIN)
                operation.done()
        self._ask(self.decide)

    def _activity(self, running: Pass) -> str:
        return f"{self.name}/{running.operations[0].op_id}"
