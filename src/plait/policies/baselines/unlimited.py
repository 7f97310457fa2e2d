"""No admission control: every run rolls out as soon as it asks; the engine's queue does the rest.

The ablation against which KV-aware admission is measured.
"""

from dataclasses import dataclass

from plait.core.plan import AdmissionPlan
from plait.core.runs import Stage
from plait.core.view import AdmissionView
from plait.policies import waits
from plait.policies.protocol import State


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitAll:
    """Admit whoever waits."""

    name: str = "unlimited"

    def decide(self, view: AdmissionView, state: State, now: float) -> tuple[AdmissionPlan, State]:
        """Admit all, in submission order."""
        queue = sorted(
            (run for run in view.runs if run.stage is Stage.WAIT_ROLLOUT), key=lambda r: r.order
        )
        plan = AdmissionPlan(
            admit=tuple(run.run_id for run in queue), waits=waits.paused(view.runs)
        )
        return plan, state
