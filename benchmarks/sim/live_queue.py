"""Live queue: the runtime's own training queue in service, at any scale, for timing it.

Runs roll out, ask for an update (a gradient and its step), are served as the policy says and roll
out again; one in ``LASTS`` of them ends then, and another comes. What is timed is the runtime's
whole answer to a worker that has finished: its books, the view, the decision, telling who waits,
and the next command. The worker only remembers the command, and the journal is that of a launch of
``plait serve``, or one that writes every decision down.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from benchmarks.sim.views import LASTS, MEAN_UPDATE_S
from plait.core.errors import StoreError
from plait.core.ids import OpId, RunId, TenantId
from plait.core.operations import AdamParams, Datum, ForwardBackward, ForwardResult, OptimStep
from plait.core.runs import RunSpec, Stage
from plait.obs.recorder import Recorder
from plait.policies.protocol import Dispatch
from plait.runtime import messages as m
from plait.runtime.facts import Roster, RunFacts
from plait.runtime.gradients import Gradient
from plait.runtime.handle import WorkerHandle
from plait.runtime.journal import LaunchJournal
from plait.runtime.trainer_queue import TrainerQueue

STEP_S = 0.05
"""Of an optimizer step; the rest of an update is its gradient."""
DATUM = Datum(
    input_tokens=tuple(range(512)), target_tokens=tuple(range(1, 513)), mask=(True,) * 512
)
"""More rows than a shared pass has, as batches of any size are: each update goes by itself."""
ADAM = AdamParams(learning_rate=1e-4)
ADDED = ForwardResult(logprobs=(), metrics={})


class _Worker:
    """Takes a command."""

    def __init__(self) -> None:
        self.told: m.Train | m.TrainTogether | None = None

    def send(self, command: m.Command) -> None:
        if isinstance(command, m.Train | m.TrainTogether):
            self.told = command


class LiveQueue:
    """One training worker's queue, and the runs that use it."""

    def __init__(
        self,
        policy: Dispatch,
        journal: LaunchJournal,
        *,
        n_runs: int,
        n_waiting: int,
        n_served: int,
        rng: random.Random,
    ) -> None:
        """``n_served``: runs that the rollout workers serve at a time, and report of between two
        decisions; the others that roll out wait there."""
        self.now = 0.0
        self._rng, self._n, self._n_ops, self._n_served = rng, 0, 0, n_served
        self._journal = journal
        self._rollout_s = (n_runs - n_waiting) * MEAN_UPDATE_S
        self._roster, self._worker = Roster(), _Worker()
        self._queue = TrainerQueue(self._roster, policy, now=lambda: self.now, journal=journal)
        self._rolling: list[tuple[float, RunId]] = []
        for _ in range(n_runs):
            self._enter()
        for run_id in rng.sample([f.spec.run_id for f in self._roster.all()], n_waiting):
            self._ask(run_id)
        self._rolling = [r for r in self._rolling if self._roster[r[1]].rollout is not None]
        heapify(self._rolling)
        self._queue.attach(cast(WorkerHandle, self._worker))

    @property
    def n_waiting(self) -> int:
        """Runs that are asking for an update."""
        return len(self._roster.all()) - len(self._rolling)

    def serve(self) -> float | None:
        """Carry out what the worker has been told. The seconds of a core in which the runtime took
        the answer and gave the next command; ``None`` where nobody asked for one."""
        told = self._worker.told
        assert isinstance(told, m.Train)
        op, self._worker.told = told.op, None
        steps = isinstance(op, OptimStep)
        seconds = STEP_S if steps else self._rng.uniform(0.2, 1.8) * MEAN_UPDATE_S - STEP_S
        self.now += seconds
        while self._rolling and self._rolling[0][0] <= self.now:
            self._ask(heappop(self._rolling)[1])
        for _, run_id in self._rolling[: self._n_served]:
            self._roster[run_id].served("rollout", seconds / self._n_served, 100)
        facts = self._roster[op.run_id]
        facts.served("train", seconds, len(DATUM.input_tokens))
        if steps:
            facts.uncommitted, facts.step = [], facts.step + 1
            facts.pace.stepped(self.now)
        start = time.thread_time()
        self._queue.finished(op.op_id, ADDED, seconds)
        took_s = time.thread_time() - start
        if steps:
            self._go_on(facts)
        if self._worker.told is not None:
            return took_s
        self.now, run_id = heappop(self._rolling)
        self._ask(run_id)
        return None

    def _go_on(self, facts: RunFacts) -> None:
        """It rolls out again, or ends, and another comes."""
        if self._rng.randrange(LASTS):
            self._roll(facts)
            return
        run_id, facts.end = facts.spec.run_id, Stage.DONE
        self._queue.forget(run_id)
        self._roster.remove(run_id)
        self._enter()

    def _enter(self) -> None:
        spec = RunSpec(
            run_id=RunId(f"run-{self._n}"),
            tenant_id=TenantId(f"tenant-{self._n % 40}"),
            base_model="model",
            weight=self._rng.choice((0.5, 1.0, 1.0, 2.0)),
            priority=self._rng.choice((0, 0, 0, 1)),
        )
        self._n += 1
        facts = self._roster.add(spec, self.now)
        facts.version, facts.path = 0, f"versions/{spec.run_id}/000000"
        self._roll(facts)

    def _roll(self, facts: RunFacts) -> None:
        facts.rollout = Stage.ROLLOUT
        facts.staged(self.now, self._journal)
        took_s = self._rng.expovariate(1.0 / self._rollout_s) if self._rollout_s else 0.0
        heappush(self._rolling, (self.now + took_s, facts.spec.run_id))

    def _ask(self, run_id: RunId) -> None:
        facts, gradient = self._roster[run_id], Gradient()
        facts.rollout = None
        facts.staged(self.now, self._journal)
        self._n_ops += 2
        common: dict[str, Any] = {"run_id": run_id, "seq": self._n_ops}
        gradient.queued = self._queue.submit(
            ForwardBackward(
                op_id=OpId(f"{run_id}/{self._n_ops}"), data=(DATUM,), loss="ppo", **common
            )
        )
        self._queue.submit(
            OptimStep(op_id=OpId(f"{run_id}/{self._n_ops + 1}"), adam=ADAM, **common),
            behind=(gradient,),
        )


def live_times(
    policy: Dispatch,
    *,
    n_runs: int,
    n_waiting: int,
    n_served: int,
    n_decisions: int,
    written: bool = False,
) -> tuple[list[float], float]:
    """Seconds of each decision after the other, and how many runs waited on average. ``written``:
    as in a launch that writes every decision down."""

    async def timed() -> tuple[list[float], float]:
        took: list[float] = []
        waited = 0
        with _journal(sparse=not written) as journal:
            live = LiveQueue(
                policy,
                journal,
                n_runs=n_runs,
                n_waiting=n_waiting,
                n_served=n_served,
                rng=random.Random(n_runs),
            )
            while len(took) < n_decisions:
                n, seconds = live.n_waiting, live.serve()
                if seconds is not None:
                    took.append(seconds)
                    waited += n
        return took, waited / len(took)

    return asyncio.run(timed())


@contextmanager
def _journal(*, sparse: bool) -> Iterator[LaunchJournal]:
    with TemporaryDirectory() as directory:
        recorder = Recorder(Path(directory), origin_s=0.0, before_s=0.0, sparse=sparse)
        yield LaunchJournal(
            recorder, policy="plait", n_params=1, now=lambda: 0.0, on_broken=_broken
        )
        recorder.close()


def _broken(error: StoreError) -> None:
    raise error
