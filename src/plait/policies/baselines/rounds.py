"""Multi-LoRA, synchronous: all runs roll out together and wait for each other (MARLaaS baseline).

A round opens when every run that takes part waits for it; all are admitted at once. No update
starts before the last rollout of the round has ended; then the updates are done one after another,
and the next round opens when the last is done.

Runs that are paused, have ended, or have done nothing for ``IDLE_GRACE_S`` hold no barrier. There
is no state: the stages say where the round stands.
"""

from dataclasses import dataclass

from plait.core.plan import AdmissionPlan, DispatchPlan, Wait
from plait.core.runs import Stage
from plait.core.view import AdmissionView, DispatchView
from plait.policies import waits
from plait.policies.baselines.one_at_a_time import asks
from plait.policies.dispatch import arrival_order, heads_by_run, mid_update, serve
from plait.policies.protocol import State


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAdmission:
    """Admit all runs together once all are ready."""

    name: str = "rounds"

    def decide(self, view: AdmissionView, state: State, now: float) -> tuple[AdmissionPlan, State]:
        """Open the next round if nobody is on the way to it."""
        queue = sorted(
            (run for run in view.runs if run.stage is Stage.WAIT_ROLLOUT), key=lambda r: r.order
        )
        missing = sorted(
            run.run_id
            for run in view.runs
            if run.stage is not Stage.WAIT_ROLLOUT and asks(run, now)
        )
        paused = waits.paused(view.runs)
        if not missing:
            return AdmissionPlan(admit=tuple(run.run_id for run in queue), waits=paused), state
        detail = "the next round waits for " + ", ".join(missing)
        held = tuple(Wait(run_id=run.run_id, reason=waits.BARRIER, detail=detail) for run in queue)
        return AdmissionPlan(waits=held + paused), state


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDispatch:
    """Updates in order of arrival, none before the round's last rollout has ended."""

    name: str = "rounds"

    def decide(self, view: DispatchView, state: State, now: float) -> tuple[DispatchPlan, State]:
        """Hold updates while anybody rolls out; other operations (create, load) go through."""
        heads, paused = heads_by_run(view)
        queue = arrival_order(view, heads)
        rolling = sorted(run.run_id for run in view.runs if run.stage is Stage.ROLLOUT)
        updating = {run.run_id for run in view.runs if mid_update(run)}
        if not rolling:
            return serve(queue, paused), state
        detail = "updates start when these have rolled out: " + ", ".join(rolling)
        held = tuple(
            Wait(run_id=item.run_id, reason=waits.BARRIER, detail=detail)
            for item in queue
            if item.run_id in updating
        )
        return serve([i for i in queue if i.run_id not in updating], held + paused), state
