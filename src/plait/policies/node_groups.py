"""Node groups: where a full-weight run is placed, and when in its cycle (PlexRL §4, Fig. 4).

Every group has a ring of demand (``rings``). A waiting run goes to the (group g, phase φ) with the
least ``overlap(g, φ) = Σ_b max(0, L_g[b] + d[(b − φ) mod B] − 1)``, if memory allows and nobody's
step, its own included, is then delayed by more than its slack. Of equal ones: the smallest group
that is large enough, then the idlest (``prefer="pack"``: the fullest), then the phase that leaves
most room for jitter (``node_search``).

A run without a demand runs *cold*: it counts as all of its group, gets an empty one or the idlest,
and nobody joins it until it is profiled. The first of the queue that finds no place is its *head*:
the group where it is expected to fit first is kept for it, and only runs that are expected to have
ended by then may *backfill* it; none may once the head is overdue (``node_queue``).

Invariants: memory is never exceeded; a bound run never moves; predicted delays of profiled runs are
within their slack when one is bound; a cold run is joined by nobody; every run that is not bound
gets exactly one ``Wait``. A run is bound after finitely many others, if runs end and its tenant's
quota allows: an empty group that is large enough takes anybody.

A run that found no place is looked at again when something has become free, not before, so a
decision costs what has changed. Left to others: profiling; beginning a step at its phase
(``phase_s`` on the runtime's clock, modulo the period); whose operation is next (``hrrn``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plait.core.ids import RunId
from plait.core.placement import Binding, PlacementPlan, PlacementView, WaitingRun
from plait.core.plan import LazyWaits, Wait
from plait.policies import node_index, node_queue, reservation, waits
from plait.policies.kept import Kept, take
from plait.policies.node_search import GroupTable, Refusal, Spot
from plait.policies.protocol import State
from plait.policies.quotas import Quota, by_tenant

TRIES = 32
"""Searches in vain per decision; who is behind them is looked at in the next. One over 1,250 groups
takes some tenths of a millisecond."""
NEXT = Refusal(reason=waits.BEHIND, detail="it is looked at after those before it")


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicPlacement:
    """Interleave runs on a cyclic horizon."""

    name: str = "cyclic"
    prefer: Literal["spread", "pack"] = "spread"
    """Among equal overlaps. Spread: an idle device earns nothing, and a run cannot move later."""
    backfill: bool = True
    """Off: nobody is placed before who stands ahead in the queue."""
    quotas: tuple[Quota, ...] = ()

    def decide(self, view: PlacementView, state: State, now: float) -> tuple[PlacementPlan, State]:
        """Bind who finds a place, in the order of the queue; ConfigError on a malformed trace."""
        return _Decision(self, view, state, now).run()


class _Decision:
    """One decision: what is known, and what it has done so far."""

    def __init__(
        self, policy: CyclicPlacement, view: PlacementView, state: State, now: float
    ) -> None:
        self._policy, self._waiting, self._now = policy, view.waiting, now
        before: dict[str, Any] = state.get("queue", {})
        for run in view.waiting:
            if run.run_id not in before:
                node_index.check(run.demand, run.run_id)
        table, suspects = take(state, GroupTable), None
        if table is None or table.entries is not state.get("groups"):
            table = GroupTable()
        else:
            suspects = table.suspects(view.groups)
        index = node_index.refresh(state, view, suspects, table.entry)
        self._changed = index.changed
        self._table = table
        self._table.follow(view.groups, index.entries, index.horizon_s, suspects)
        self._epoch = int(state.get("epoch", 0)) + index.freed
        self._places = node_queue.enter(before, view.waiting)
        self._since_overdue = int(state.get("since_overdue", 0))
        self._reserved: reservation.Reserved | None = state.get("reserved")
        self._bound: dict[str, dict[str, Any]] = dict(state.get("bound", {}))
        self._tenants: dict[str, list[float]] = dict(state.get("tenants", {}))
        for run_id in index.left:
            if run_id in self._bound:
                self._charge(self._bound.pop(run_id), -1)
        self._quotas = by_tenant(policy.quotas)
        self._asking = {run.tenant_id for run in view.waiting}
        self._n_failed = 0

    def run(self) -> tuple[PlacementPlan, State]:
        """The plan and the new state."""
        table = self._table
        shift = tuple(b for group in self._changed for b in table.shift(group))
        queue, overdue = node_queue.order(
            self._places, self._waiting, self._tenants, self._since_overdue, self._eligible
        )
        bind: list[Binding] = []
        placed: list[WaitingRun] = []
        refused: list[tuple[WaitingRun, Refusal]] = []
        failed: dict[int, Refusal] = {}
        head: WaitingRun | None = None
        for run in queue:
            outcome = self._quota(run) or self._try(run, failed, head, overdue)
            if isinstance(outcome, Spot):
                bind.append(self._bind(run, outcome))
                placed.append(run)
                self._since_overdue = 0 if run is overdue else self._since_overdue + 1
                continue
            refused.append((run, outcome))
            if head is None and outcome.reason not in (waits.QUOTA, waits.NEVER_FITS):
                head = run
                self._reserved = reservation.renew(
                    self._reserved, run, table, self._bound, self._now
                )
        if head is None:
            self._reserved = None
        plan = PlacementPlan(bind=tuple(bind), waits=Told(refused, self._reserved), shift=shift)
        left = {
            "horizon_s": table.horizon_s,
            "epoch": self._epoch,
            "groups": table.entries,
            "queue": node_queue.settle(self._places, self._waiting, placed),
            "bound": self._bound,
            "tenants": self._tenants,
            "reserved": self._reserved,
            "since_overdue": self._since_overdue,
        }
        return plan, Kept(left, table)

    def _eligible(self, run: WaitingRun) -> bool:
        return self._quota(run) is None and bool(self._table.large_enough(run).any())

    def _quota(self, run: WaitingRun) -> Refusal | None:
        quota = self._quotas.get(run.tenant_id)
        if quota is None:
            return None
        n_devices = sum(group.n_devices for group in self._table.groups)
        n_runs, devices = self._tenants.get(run.tenant_id, (0, 0.0))
        why = quota.exceeded(
            int(n_runs), devices / max(1, n_devices), contended=len(self._asking) > 1
        )
        return Refusal(reason=waits.QUOTA, detail=why) if why else None

    def _try(
        self,
        run: WaitingRun,
        failed: dict[int, Refusal],
        head: WaitingRun | None,
        overdue: WaitingRun | None,
    ) -> Spot | Refusal:
        """A place for the run, or why there is none; remembered until something becomes free."""
        if head is not None and not self._policy.backfill:
            return Refusal(reason=waits.BEHIND, detail=f"{head.run_id} is before it")
        place = self._places[run.run_id]
        if place["tried"] == self._epoch:
            return Refusal(reason=place["why"][0], detail=place["why"][1])
        kind = self._table.kind(run)
        outcome: Spot | Refusal | None = failed.get(kind)
        if outcome is None:
            if self._n_failed >= TRIES:
                return NEXT
            closed = reservation.closed(
                self._reserved, run, self._table, self._now, to_all=head is overdue
            )
            outcome = self._table.find(run, self._policy.prefer, None if head is None else closed)
            self._n_failed += isinstance(outcome, Refusal)
        if isinstance(outcome, Refusal) and outcome.lasting:
            failed[kind] = outcome
            why = [outcome.reason, outcome.detail]
            self._places[run.run_id] = {**place, "tried": self._epoch, "why": why}
        return outcome

    def _bind(self, run: WaitingRun, spot: Spot) -> Binding:
        group = self._table.groups[spot.i]
        self._table.add(run, spot)
        self._bound[run.run_id] = {
            "tenant": run.tenant_id,
            "devices": group.n_devices * spot.mean,
            "until": reservation.until(run, self._now),
        }
        self._charge(self._bound[run.run_id], 1)
        return Binding(run_id=run.run_id, group_id=group.group_id, phase_s=spot.phase_s)

    def _charge(self, kept: dict[str, Any], sign: int) -> None:
        """One run more or fewer of its tenant's."""
        n, devices = self._tenants.pop(kept["tenant"], (0, 0.0))
        if n + sign > 0:
            self._tenants[kept["tenant"]] = [n + sign, devices + sign * kept["devices"]]


class Told(LazyWaits):
    """The waits, with places in the queue."""

    __slots__ = ("_refused", "_reserved")

    def __init__(
        self,
        refused: Sequence[tuple[WaitingRun, Refusal]],
        reserved: reservation.Reserved | None,
    ) -> None:
        self._refused, self._reserved = refused, reserved

    def __len__(self) -> int:
        return len(self._refused)

    def reasons(self) -> Iterator[tuple[RunId, str]]:
        """Run and reason of each, in order."""
        return ((run.run_id, refusal.reason) for run, refusal in self._refused)

    def word(self, place: int) -> Wait:
        """With what is kept for whom, where that is the reason."""
        run, refusal = self._refused[place]
        reserved, detail = self._reserved, refusal.detail
        if reserved is not None and refusal.reason == waits.RESERVED:
            detail = f"{reserved['group']} is being kept for {reserved['run']}"
        return Wait(run_id=run.run_id, reason=refusal.reason, detail=detail, position=place + 1)
