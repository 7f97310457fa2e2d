"""Trainers: the training workers of one base model, a queue for each.

Effects only: it keeps which worker each run is at home on, asks the policy when a run begins an
update with nothing of the last one left, and passes everything on to the queue there. A worker that
dies concerns the runs that are at home on it and no others.
"""

import asyncio
from collections.abc import Callable, Sequence

from plait.core.errors import PlaitError
from plait.core.ids import OpId, RunId, WorkerId
from plait.core.operations import ForwardBackward, Result, TrainOp
from plait.core.view import HomeView
from plait.policies.protocol import Sharing, State
from plait.runtime.facts import Roster, RunFacts
from plait.runtime.gradients import Gradient
from plait.runtime.handle import WorkerHandle
from plait.runtime.journal import Journal
from plait.runtime.trainer_queue import TrainerQueue


class Trainers:
    """All training-side work of one base model."""

    def __init__(
        self,
        roster: Roster,
        sharing: Sharing,
        worker_ids: Sequence[WorkerId],
        *,
        now: Callable[[], float],
        journal: Journal,
        may_share: bool = True,
    ) -> None:
        """``may_share``: gradients of several runs may go through the model together."""
        self._roster, self._policy = roster, sharing.home
        self._now, self._journal = now, journal
        self._state: State = {}
        self._queues = {
            worker_id: TrainerQueue(
                roster, sharing.dispatch, now=now, journal=journal, may_share=may_share
            )
            for worker_id in worker_ids
        }
        self._homes: dict[RunId, WorkerId] = {}

    def attach(self, worker: WorkerHandle) -> None:
        """Use this worker from now on, for the runs that are at home on it."""
        self._queues[worker.worker_id].attach(worker)

    def submit(
        self, op: TrainOp, *, save_to: str | None = None, behind: tuple[Gradient, ...] = ()
    ) -> asyncio.Future[Result]:
        """Queue an operation. It fails if a gradient that it stands ``behind`` does."""
        home = self._home(self._roster[op.run_id], op)
        return self._queues[home].submit(op, save_to=save_to, behind=behind)

    def decide(self) -> None:
        """Ask the policy what each worker that is free does next."""
        for queue in self._queues.values():
            queue.decide()

    def finished(
        self, worker_id: WorkerId, op_id: OpId, result: Result | PlaitError, seconds: float
    ) -> bool:
        """Take a worker's answer; False if the operation is not one of ours."""
        queue = self._queues.get(worker_id)
        return queue is not None and queue.finished(op_id, result, seconds)

    def lost(self, worker_id: WorkerId) -> None:
        """A worker is gone: what it did is done again by the next, or fails."""
        self._queues[worker_id].lost()

    def drop(self, run_id: RunId, error: PlaitError) -> None:
        """The run has ended: what it still had queued is refused."""
        if (home := self._homes.get(run_id)) is not None:
            self._queues[home].drop(run_id, error)

    def forget(self, run_id: RunId) -> None:
        """The run's state on its worker is not what the store says."""
        if (home := self._homes.get(run_id)) is not None:
            self._queues[home].forget(run_id)

    def has(self, run_id: RunId) -> bool:
        """True while something of the run is queued or running."""
        home = self._homes.get(run_id)
        return home is not None and self._queues[home].has(run_id)

    def let_go(self, run_id: RunId) -> None:
        """The run, which has nothing queued or running, leaves its worker."""
        self.forget(run_id)
        self._homes.pop(run_id, None)

    def home(self, run_id: RunId) -> WorkerId | None:
        """The worker that did the run's last update."""
        return self._homes.get(run_id)

    def _home(self, facts: RunFacts, op: TrainOp) -> WorkerId:
        """The worker for an operation; the run's state there is brought up by its queue."""
        run_id = facts.spec.run_id
        home = self._homes.get(run_id)
        if home is not None:
            # Only a gradient begins an update, and behind no operation that has not been committed.
            begins = isinstance(op, ForwardBackward) and not facts.uncommitted
            if not begins or self._queues[home].has(run_id):
                return home
        if len(self._queues) == 1:
            (chosen,) = self._queues
        else:
            view = HomeView(run_id=run_id, home=home, others=self._others(run_id))
            before = self._state
            plan, self._state = self._policy.decide(view, before, self._now())
            chosen = plan.worker_id
            if chosen != home:
                self._journal.decision("home", view, before, plan)
        if home not in (None, chosen):
            self.forget(run_id)
        self._homes[run_id] = chosen
        return chosen

    def _others(self, run_id: RunId) -> tuple[tuple[WorkerId, int], ...]:
        n_by_worker = dict.fromkeys(self._queues, 0)
        for other, home in self._homes.items():
            n_by_worker[home] += other != run_id and not self._roster[other].stage.ended
        return tuple(n_by_worker.items())
