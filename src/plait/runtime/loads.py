"""Loads: versions on their way to the rollout workers, which must all have one before it counts as
published. One that a lost worker had not answered is loaded by the next."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from plait.core.errors import PlaitError, WorkerLost
from plait.core.ids import OpId, RunId, WorkerId
from plait.runtime import messages as m
from plait.runtime.handle import WorkerHandle
from plait.runtime.suspects import MAX_LOSSES


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

    def fail(self, error: PlaitError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Loads:
    """Adapters being loaded."""

    def __init__(self) -> None:
        self._loads: dict[OpId, _Loading] = {}

    async def load(self, command: m.LoadAdapter, workers: Iterable[WorkerHandle]) -> None:
        """Have all workers load a version; done when they have."""
        future = asyncio.get_running_loop().create_future()
        loading = self._loads[command.op_id] = _Loading(command, future)
        for worker in workers:
            _tell(loading, worker)
        try:
            await loading.future
        finally:
            self._loads.pop(command.op_id, None)

    def attach(self, worker: WorkerHandle) -> None:
        """A worker that is new here loads them too."""
        for loading in self._loads.values():
            _tell(loading, worker)

    def finished(self, worker_id: WorkerId, op_id: OpId, error: PlaitError | None) -> bool:
        """Take a worker's answer; False if it is not about a load."""
        loading = self._loads.get(op_id)
        if loading is None:
            return False
        loading.waiting.discard(worker_id)
        if error is not None:
            loading.fail(error)
        else:
            loading.done = True
            loading.settle()
        return True

    def lost(self, worker_id: WorkerId, *, blamed: bool) -> None:
        """A worker is gone. ``blamed``: it did nothing else that it could have died of."""
        for loading in self._loads.values():
            loading.losses += blamed and worker_id in loading.waiting
            if loading.losses >= MAX_LOSSES:
                loading.fail(
                    WorkerLost("the rollout worker died twice during a publish: see its log")
                )
            loading.waiting.discard(worker_id)
            loading.settle()

    def drop(self, run_id: RunId, error: PlaitError) -> None:
        """The run has ended: nobody wants its versions."""
        for loading in self._loads.values():
            if loading.command.run_id == run_id:
                loading.fail(error)


def _tell(loading: _Loading, worker: WorkerHandle) -> None:
    loading.waiting.add(worker.worker_id)
    worker.send(loading.command)
