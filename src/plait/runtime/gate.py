"""Gate: lets runs into their rollout as the admission policy decides.

Effects only: it keeps who waits, asks the policy whenever something changed, and wakes the
admitted. The policy sees an ``AdmissionView`` and nothing else.
"""

import asyncio
from collections.abc import Callable

from plait.core.errors import RunEnded
from plait.core.ids import RunId
from plait.core.plan import AdmissionPlan
from plait.core.runs import Stage
from plait.core.view import AdmissionView
from plait.policies.protocol import Admission, State
from plait.profiles import kv
from plait.runtime.facts import Roster, RunFacts
from plait.runtime.journal import Journal
from plait.runtime.notice import Notice


class Gate:
    """Admission of rollouts, applied."""

    def __init__(
        self,
        roster: Roster,
        policy: Admission,
        *,
        budget_blocks: int,
        now: Callable[[], float],
        journal: Journal,
    ) -> None:
        self.budget_blocks = budget_blocks
        self._roster, self._policy, self._now = roster, policy, now
        self._journal = journal
        self._state: State = {}
        self._waiting: dict[RunId, asyncio.Future[None]] = {}
        self._notice = Notice()
        self._last: tuple[AdmissionView, AdmissionPlan] | None = None

    async def enter(self, facts: RunFacts, worst_blocks: int, *, evaluating: bool) -> None:
        """Wait until the run may roll out. RunEnded if it is ended meanwhile."""
        facts.check_live()
        if facts.rollout is not None:
            raise RunEnded(f"run {facts.spec.run_id} is rolling out already: leave first")
        facts.worst_blocks, facts.evaluating = worst_blocks, evaluating
        future = asyncio.get_running_loop().create_future()
        self._waiting[facts.spec.run_id] = future
        self._stage(facts, Stage.WAIT_ROLLOUT)
        self.decide()
        try:
            await future
        except BaseException:
            # Cancelled, or ended: perhaps between the admission and this task's turn to notice it.
            self._waiting.pop(facts.spec.run_id, None)
            if facts.rollout is not None:
                self.leave(facts)
            raise
        self._waiting.pop(facts.spec.run_id, None)

    def leave(self, facts: RunFacts, *, then: Stage | None = None) -> None:
        """The run's rollout is over and its cache free for others; ``REWARD`` if it is complete."""
        if facts.rollout is Stage.ROLLOUT and then is Stage.REWARD:
            seen = kv.KvObservation(
                seconds=self._now() - facts.rollout_since_s,
                block_s=facts.kv_block_s,
                peak_blocks=facts.kv_peak_blocks,
                throttled=facts.kv_throttled,
            )
            facts.kv = {**facts.kv, facts.evaluating: kv.update(facts.kv_profile, seen)}
        facts.evaluating = False
        self._stage(facts, then)
        self.decide()

    def refuse(self, run_id: RunId, error: Exception) -> None:
        """Wake a waiting run with an error (it was cancelled, or has failed)."""
        future = self._waiting.pop(run_id, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def decide(self) -> None:
        """Ask the policy and apply its plan; called on every change and by the clock."""
        if not self._waiting:
            return
        now = self._now()
        view = AdmissionView(budget_blocks=self.budget_blocks, runs=self._roster.live_views())
        before = self._state
        plan, self._state = self._policy.decide(view, before, now)
        if plan.admit or self._last != (view, plan):
            self._journal.decision("admission", view, before, plan)
            self._last = (view, plan)
        for run_id, reason in self._notice.put_up(plan.waits, self._waiting):
            facts = self._roster[run_id]
            if facts.rollout is Stage.WAIT_ROLLOUT:
                facts.waits_for(self._notice, reason, self._journal)
        for run_id in plan.admit:
            future = self._waiting.get(run_id)
            if future is not None and not future.done():
                facts = self._roster[run_id]
                facts.told = None
                facts.kv_block_s, facts.kv_peak_blocks, facts.kv_throttled = 0.0, 0, False
                facts.kv_held.clear()
                facts.rollout_since_s = now
                self._stage(facts, Stage.ROLLOUT)
                future.set_result(None)

    def _stage(self, facts: RunFacts, stage: Stage | None) -> None:
        facts.rollout = stage
        facts.staged(self._now(), self._journal)
