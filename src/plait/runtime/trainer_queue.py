"""Training queue: hands training-side operations to its worker as the dispatch policy decides.

Order within a run is the order of submission; between runs it is the policy's. Non-preemptive: one
operation at a time, or gradients of several runs that the policy lets share a pass; each of them
has an end of its own. A run whose state is not on the worker (first use, or after the worker was
replaced) is brought back first: its committed version, then the gradients accumulated since.
"""

import asyncio
from collections.abc import Callable, Sequence

from plait.core.errors import PlaitError, WorkerLost
from plait.core.ids import OpId, RunId
from plait.core.operations import (
    Create,
    ForwardBackward,
    ForwardResult,
    Load,
    Result,
    TrainOp,
)
from plait.core.runs import Stage
from plait.core.view import DispatchView
from plait.policies.protocol import Dispatch, State
from plait.profiles import timing
from plait.profiles.tokens import distinct_tokens
from plait.runtime import messages as m
from plait.runtime.backlog import Backlog, Pending
from plait.runtime.facts import Roster, RunFacts
from plait.runtime.gradients import Gradient
from plait.runtime.handle import WorkerHandle
from plait.runtime.journal import Journal
from plait.runtime.notice import Notice

MAX_LOSSES = 2
"""An operation under which the worker died this often is the cause, not the victim: it fails. A
death in company is nobody's, but whoever was there goes by itself from then on."""


class TrainerQueue:
    """All work of one training worker."""

    def __init__(
        self,
        roster: Roster,
        policy: Dispatch,
        *,
        now: Callable[[], float],
        journal: Journal,
        may_share: bool = True,
    ) -> None:
        """``may_share``: gradients of several runs may go through the model together."""
        self._roster, self._policy, self._now = roster, policy, now
        self._journal, self._may_share = journal, may_share
        self._state: State = {}
        self._backlog = Backlog(roster)
        self._resident = self._backlog.resident
        self._notice = Notice()
        self._running: dict[OpId, Pending] = {}
        self._worker: WorkerHandle | None = None
        self._doubtful: set[RunId] = set()
        """Runs to forget as soon as what is running for them has ended."""
        self._last: tuple[DispatchView, object] | None = None

    def attach(self, worker: WorkerHandle) -> None:
        """Use this worker from now on; nothing is resident on it yet."""
        self._worker = worker
        self._resident.clear()
        self.decide()

    def submit(
        self, op: TrainOp, *, save_to: str | None = None, behind: tuple[Gradient, ...] = ()
    ) -> asyncio.Future[Result]:
        """Queue an operation. It fails if a gradient that it stands ``behind`` does."""
        facts = self._roster[op.run_id]
        facts.check_live()
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        tokens = sum(len(d.input_tokens) for d in getattr(op, "data", ()))
        n_rows = 0
        if self._may_share and isinstance(op, ForwardBackward):
            n_rows = distinct_tokens(d.input_tokens for d in op.data)
        self._backlog.append(Pending(op, future, self._now(), save_to, tokens, behind, n_rows))
        if facts.train is None:
            self._stage(facts, Stage.WAIT_TRAIN)
        self.decide()
        return future

    def decide(self) -> None:
        """If the worker is free, ask the policy what it does next."""
        if self._running or self._worker is None:
            return
        for run_id in self._backlog.refresh():
            self._stage(self._roster[run_id], None)
        items = self._backlog.items()
        if not items:
            return
        view = DispatchView(
            items=items, runs=self._roster.live_views(), resident=self._resident.ids()
        )
        before = self._state
        plan, self._state = self._policy.decide(view, before, self._now())
        if plan.op_id is not None or self._last != (view, plan):
            self._journal.decision("dispatch", view, before, plan)
            self._last = (view, plan)
        chosen = [] if plan.op_id is None else [plan.op_id, *plan.along]
        together = [self._backlog.take(op_id) for op_id in chosen]
        served = {pending.op.run_id for pending in together}
        newcomers = [run_id for run_id in self._backlog.touched if run_id not in served]
        for run_id, reason in self._notice.put_up(plan.waits, newcomers):
            facts = self._roster[run_id]
            if facts.rollout is None:
                facts.waits_for(self._notice, reason, self._journal)
        self._start(together)

    def finished(self, op_id: OpId, result: Result | PlaitError, seconds: float) -> bool:
        """Take the worker's answer; False if the operation is not one of ours."""
        pending = self._running.pop(op_id, None)
        if pending is None:
            return False
        facts = self._roster[pending.op.run_id]
        if isinstance(result, PlaitError):
            self._keep(facts, pending, known=False)
            pending.answer(result)
        elif isinstance(pending.op, ForwardBackward) and pending.future.cancelled():
            self.forget(pending.op.run_id)  # with it the gradient that nobody counts
        else:
            self._keep(facts, pending, known=True)
            seen = timing.TimingObservation(
                kind=type(pending.op).__name__, tokens=pending.tokens, seconds=seconds
            )
            facts.timing = timing.update(facts.timing, seen)
            if isinstance(pending.op, ForwardBackward) and isinstance(result, ForwardResult):
                facts.uncommitted = [*facts.uncommitted, pending.op]
            pending.answer(result)
        if pending.op.run_id not in self._backlog:
            self._stage(facts, None)
        elif not facts.stage.ended:
            self._stage(facts, Stage.WAIT_TRAIN)
        self.decide()
        return True

    def lost(self) -> None:
        """The worker is gone: what it did goes back to the head of its run's queue, or fails if it
        has lost a worker before."""
        self._worker, self._doubtful = None, set()
        self._resident.clear()
        running, self._running = list(self._running.values()), {}
        for pending in running:
            pending.rows = 0
            pending.losses += len(running) == 1
            if pending.losses >= MAX_LOSSES:
                kind = type(pending.op).__name__
                error = WorkerLost(f"the worker died twice during the same {kind}: see its log")
                pending.answer(error)
            else:
                self._backlog.put_back(pending)

    def drop(self, run_id: RunId, error: PlaitError) -> None:
        """The run has ended: what it still had queued is refused."""
        for pending in self._backlog.drop(run_id):
            pending.answer(error)
        for pending in self._running.values():
            if pending.op.run_id == run_id:
                pending.answer(error)
        if run_id in self._resident:
            self.forget(run_id)

    def has(self, run_id: RunId) -> bool:
        """True while something of the run is queued or running."""
        running = any(pending.op.run_id == run_id for pending in self._running.values())
        return running or run_id in self._backlog

    def forget(self, run_id: RunId) -> None:
        """The run's state on the worker is not what the store says: it is loaded before it is next
        used."""
        if any(pending.op.run_id == run_id for pending in self._running.values()):
            self._doubtful.add(run_id)  # nothing is taken from under a running operation
            return
        self._doubtful.discard(run_id)
        self._resident.discard(run_id)
        if self._worker is not None:
            self._worker.send(m.DropRun(run_id=run_id))

    def _keep(self, facts: RunFacts, pending: Pending, *, known: bool) -> None:
        """The run's state is on the worker, unless nobody wants it or will commit it.

        ``known``: the operation has succeeded, so the state is what it should be.
        """
        run_id = pending.op.run_id
        unwanted = facts.stage.ended or (pending.save_to and pending.future.cancelled())
        if run_id in self._doubtful or unwanted:
            self.forget(run_id)
        elif known:
            self._resident.add(run_id)

    def _start(self, together: Sequence[Pending]) -> None:
        if not together:
            return
        assert self._worker is not None
        for pending in together:
            self._running[pending.op.op_id] = pending
            facts = self._roster[pending.op.run_id]
            facts.told = None
            self._stage(facts, Stage.TRAIN)
        if len(together) > 1:
            ops = [p.op for p in together if isinstance(p.op, ForwardBackward)]
            self._worker.send(m.TrainTogether(ops=tuple(ops)))
            return
        (alone,) = together
        before = self._restore(self._roster[alone.op.run_id], alone)
        self._worker.send(m.Train(op=alone.op, before=before, save_to=alone.save_to))

    def _restore(self, facts: RunFacts, pending: Pending) -> tuple[TrainOp, ...]:
        """What must run first so that the run's state on the worker is what it should be."""
        op = pending.op
        if op.run_id in self._resident or isinstance(op, Create) or facts.version is None:
            return ()
        load = Load(op_id=OpId(f"{op.op_id}/load"), run_id=op.run_id, seq=0, path=facts.path)
        redo = () if isinstance(op, Load) else tuple(facts.uncommitted)
        return (load, *redo)

    def _stage(self, facts: RunFacts, stage: Stage | None) -> None:
        facts.train = stage
        facts.staged(self._now(), self._journal)
