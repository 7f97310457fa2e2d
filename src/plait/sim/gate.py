"""Gate: lets runs into their rollout as an admission policy decides, as the live gate does.

Left to others: footprints (``profiles.kv``), the rollout itself.
"""

from collections.abc import Callable

from plait.core.ids import RunId
from plait.core.runs import Stage
from plait.core.view import AdmissionView
from plait.policies.protocol import Admission, State
from plait.sim.heap import Event, Heap
from plait.sim.jobs import Job
from plait.sim.record import Record

TICK_S = 0.5
"""How soon a policy is asked again where it let nobody in and nothing else is going to happen, as
the live loop asks it twice a second: what ages by the clock takes effect."""


class Gate:
    """Admission of rollouts, applied."""

    def __init__(
        self,
        policy: Admission,
        *,
        budget_blocks: int,
        heap: Heap,
        record: Record,
        ask: Callable[[Callable[[], None]], None],
    ) -> None:
        self.budget_blocks = budget_blocks
        self._policy, self._heap, self._record, self._ask = policy, heap, record, ask
        self._jobs: dict[RunId, Job] = {}
        self._state: State = {}
        self._waiting: dict[RunId, Job] = {}
        self._tick: Event | None = None
        self._delay_s = TICK_S

    def enter(self, job: Job) -> None:
        """The run is one of those that share this cache."""
        self._jobs[job.run_id] = job
        self._ask(self.decide)

    def leave(self, job: Job) -> None:
        """It is over."""
        del self._jobs[job.run_id]
        self._waiting.pop(job.run_id, None)
        self._ask(self.decide)

    def wait(self, job: Job) -> None:
        """The run is ready for its next rollout."""
        self._waiting[job.run_id] = job
        self._ask(self.decide)

    def freed(self) -> None:
        """A rollout has ended, or something else has changed."""
        self._ask(self.decide)

    def decide(self) -> None:
        """Ask the policy and apply its plan."""
        if not self._waiting:
            return
        view = AdmissionView(
            budget_blocks=self.budget_blocks,
            runs=tuple(job.view() for job in self._jobs.values()),
        )
        before = self._state
        plan, self._state = self._policy.decide(view, before, self._heap.now)
        self._record.decision("admission", self._policy, view, before, plan)
        for wait in plan.waits:
            if wait.run_id in self._waiting:
                self._jobs[wait.run_id].waits(wait)
        for run_id in plan.admit:
            job = self._waiting.pop(run_id, None)
            if job is not None and job.rollout is Stage.WAIT_ROLLOUT:
                job.begin_rollout()
        if self._tick is not None:
            self._heap.cancel(self._tick)
            self._tick = None
        idle = not any(job.stage in BUSY for job in self._jobs.values())
        self._delay_s = TICK_S if plan.admit or not idle else self._delay_s * 2
        if self._waiting and idle:
            self._tick = self._heap.after(self._delay_s, self._again)

    def _again(self, _: object) -> None:
        self._tick = None
        self._ask(self.decide)


BUSY = (Stage.ROLLOUT, Stage.REWARD, Stage.WAIT_TRAIN, Stage.TRAIN)
"""Something will happen to such a run, and then the policy is asked."""
