"""Admission: which runs may start their rollout now (MARLaaS §4.3, KV-cache-aware scheduling).

A waiting run is admitted while  Σ blocks(rolling out) + blocks(candidate) ≤ budget.  ``blocks`` is
the run's expected footprint: measured residency once there is history, worst case before. The
budget is soft: when a rollout holds more than was expected, the engine queues the excess.

Invariants: with nothing rolling out the first candidate is admitted, whatever its size; candidates
are taken in the order of ``fairness``; one that does not fit is passed by smaller ones until it is
overdue, and from then on room is kept for it; every waiting run gets exactly one ``Wait``.

Left to others: measuring footprints (``profiles.kv``), queueing inside the engine.
"""

from dataclasses import dataclass
from typing import Literal

from plait.core.ids import RunId
from plait.core.plan import AdmissionPlan, Wait
from plait.core.runs import Stage
from plait.core.view import AdmissionView, RunView
from plait.policies import fairness, waits
from plait.policies.fairness import Claim, Ranked
from plait.policies.protocol import State


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAdmission:
    """Admit under a KV budget. ``max_active=1`` is the ablation without multi-LoRA rollout."""

    name: str = "kv"
    max_active: int = 0
    """Most runs that roll out at once; 0 is no limit."""
    estimate: Literal["measured", "worst"] = "measured"
    """``worst`` reserves for every sample's limit, as the paper does."""

    def decide(self, view: AdmissionView, state: State, now: float) -> tuple[AdmissionPlan, State]:
        """Admit in fair order what fits."""
        claims = rollout_claims(view)
        state = fairness.observe(state, view.runs, claims)
        ranked = fairness.rank(state, claims)
        rolling = [run for run in view.runs if run.stage is Stage.ROLLOUT]
        n_active = len(rolling)
        used_blocks = sum(self._blocks(run) for run in rolling)
        admitted: list[RunId] = []
        waiting: list[Wait] = []
        reserved_for: Ranked | None = None
        for entry in ranked:
            need_blocks = self._blocks(entry.run)
            fits = used_blocks + need_blocks <= view.budget_blocks
            place = len(waiting) + 1
            if n_active == 0 or (fits and not reserved_for and not self._full(n_active)):
                admitted.append(entry.run.run_id)
                n_active += 1
                used_blocks += need_blocks
            elif self._full(n_active):
                detail = f"{n_active} of at most {self.max_active} runs are rolling out"
                waiting.append(_wait(entry, waits.TURN, detail, place))
            elif reserved_for is not None:
                detail = f"room is being kept for {reserved_for.run.run_id}, which was overtaken"
                waiting.append(_wait(entry, waits.KV_BUDGET, detail, place))
            else:
                detail = (
                    f"needs {need_blocks} cache blocks, "
                    f"{max(0, view.budget_blocks - used_blocks)} of {view.budget_blocks} are free"
                )
                waiting.append(_wait(entry, waits.KV_BUDGET, detail, place))
                reserved_for = entry if entry.overdue else None
        plan = AdmissionPlan(admit=tuple(admitted), waits=(*waiting, *waits.paused(view.runs)))
        return plan, fairness.settle(state, ranked, admitted)

    def _blocks(self, run: RunView) -> int:
        return run.kv_blocks_worst if self.estimate == "worst" else run.kv_blocks

    def _full(self, n_active: int) -> bool:
        return 0 < self.max_active <= n_active


def rollout_claims(view: AdmissionView) -> tuple[Claim, ...]:
    """The runs that wait for admission."""
    return tuple(
        Claim(run=run, since_s=run.stage_since_s)
        for run in view.runs
        if run.stage is Stage.WAIT_ROLLOUT
    )


def _wait(entry: Ranked, reason: str, detail: str, position: int) -> Wait:
    return Wait(
        run_id=entry.run.run_id,
        reason=reason,
        detail=waits.join(detail, fairness.standing(entry)),
        position=position,
    )
