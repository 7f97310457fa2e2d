"""Quotas: how much of a cluster or a machine one tenant may have at once.

``Quota`` is the rule; ``QuotaAdmission`` holds back, before any admission policy is asked, the
candidates of a tenant that has its part. Node groups are given out under the same quotas
(``node_groups``).

Invariants: a tenant with nothing running may always have one run; a share binds only while another
tenant waits, so no quota leaves a machine idle; a held run is told so. Shares are of recent work,
which fades, so that a tenant that is over its share comes under it again while others are served.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp

from plait.core.errors import ConfigError
from plait.core.ids import TenantId
from plait.core.plan import AdmissionPlan, Wait
from plait.core.runs import Stage
from plait.core.view import AdmissionView, RunView
from plait.policies import waits
from plait.policies.protocol import Admission, State

FADE_S = 600.0
"""Work this long ago counts 1/e: some tens of steps of a small model, a few of a large one, so a
share is about steps and not about moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one tenant may have."""

    tenant_id: TenantId
    max_runs: int = 0
    """Runs at once; 0 is no limit."""
    max_share: float = 1.0
    """Of the devices (placement) or of recent device-seconds (admission)."""

    def __post_init__(self) -> None:
        if self.max_runs < 0 or not 0.0 < self.max_share <= 1.0:
            raise ConfigError(
                f"quota of {self.tenant_id}: max_runs is 0 (no limit) or more, max_share in (0, 1]"
            )

    def exceeded(self, n_runs: int, share: float, *, contended: bool) -> str:
        """Why a tenant with so much may not have another run now; empty if it may."""
        if n_runs == 0:
            return ""
        if 0 < self.max_runs <= n_runs:
            return f"{self.tenant_id} has {n_runs} of at most {self.max_runs} runs"
        if contended and self.max_share < 1.0 and share > self.max_share:
            return f"{self.tenant_id} has {share:.0%}, its share is {self.max_share:.0%}"
        return ""


def by_tenant(quotas: Sequence[Quota]) -> dict[TenantId, Quota]:
    """ConfigError if a tenant has two."""
    found = {quota.tenant_id: quota for quota in quotas}
    if len(found) != len(quotas):
        raise ConfigError("a tenant has two quotas: merge them")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAdmission:
    """``inner``, with candidates beyond their tenant's quota held back."""

    inner: Admission
    quotas: tuple[Quota, ...]
    name: str = "quota"

    def decide(self, view: AdmissionView, state: State, now: float) -> tuple[AdmissionPlan, State]:
        """Show ``inner`` only who may be admitted."""
        quotas = by_tenant(self.quotas)
        work, seen = _recent(state, view.runs, now)
        total = sum(work.values())
        candidates = [r for r in view.runs if r.stage is Stage.WAIT_ROLLOUT]
        asking = {r.tenant_id for r in candidates}
        n_runs: dict[TenantId, int] = {}
        for run in view.runs:
            n_runs[run.tenant_id] = n_runs.get(run.tenant_id, 0) + (run.stage is Stage.ROLLOUT)
        held: list[Wait] = []
        for run in sorted(candidates, key=lambda r: (r.stage_since_s, r.order)):
            quota = quotas.get(run.tenant_id)
            if quota is None:
                continue
            share = work.get(run.tenant_id, 0.0) / total if total > 0.0 else 0.0
            why = quota.exceeded(n_runs[run.tenant_id], share, contended=len(asking) > 1)
            if why:
                held.append(Wait(run_id=run.run_id, reason=waits.QUOTA, detail=why))
            else:
                n_runs[run.tenant_id] += 1
        out = {wait.run_id for wait in held}
        left = replace(view, runs=tuple(r for r in view.runs if r.run_id not in out))
        plan, inner = self.inner.decide(left, state.get("inner", {}), now)
        kept = {"inner": inner, "work": work, "seen": seen, "at": now}
        return replace(plan, waits=(*plan.waits, *held)), kept


def _recent(
    state: State, runs: Sequence[RunView], now: float
) -> tuple[dict[TenantId, float], dict[str, float]]:
    """Faded work by tenant, and what each run had been served when it was last charged."""
    fade = exp(-max(0.0, now - state.get("at", now)) / FADE_S)
    before: Mapping[str, float] = state.get("seen", {})
    work = {TenantId(t): w * fade for t, w in state.get("work", {}).items()}
    for run in runs:
        more = max(0.0, run.served - before.get(run.run_id, run.served))
        work[run.tenant_id] = work.get(run.tenant_id, 0.0) + more
    return work, {run.run_id: run.served for run in runs if not run.stage.ended}
