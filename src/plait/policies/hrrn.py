"""HRRN: the operation with the highest response ratio is next (PlexRL §4, eq. 3 and Fig. 5).

    S = E + [its state is elsewhere] · (offload + load)        P = 1 + w · W / S

W is how long it has waited, E its expected time, w its run's weight times 2 per priority level. A
short operation of a run whose state is here goes first; waiting raises every P without bound, so
nothing starves and priorities only hasten. Since a run of one model's operations needs one switch,
they follow each other until somebody else's wait outweighs it.

Invariants: an item of a run that is paused or has ended is never chosen; whenever another item is
there one is chosen; what ends an update that has begun goes first; every run that waits gets
exactly one ``Wait``. An operation that has begun is not interrupted. There is no state.

Left to others: the estimates and the switch itself. ``switch_aware=False`` is plain HRRN, the
baseline: its service time leaves the switch out.
"""

from dataclasses import dataclass

from plait.core.plan import DispatchPlan
from plait.core.view import DispatchView, WorkItem
from plait.policies.company import MOST_ROWS, company
from plait.policies.dispatch import finishing_first, heads_by_run, serve
from plait.policies.fairness import MIN_WEIGHT
from plait.policies.protocol import State

LEAST_S = 1e-6
"""Of a service time, so that an operation that costs nothing has a ratio."""
PER_PRIORITY = 2.0
"""A level of priority makes waiting count twice: it shortens a wait, and shuts nobody out."""
MOST_LEVELS = 30
"""Beyond it a level changes nothing, rather than overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HrrnDispatch:
    """Highest response ratio next, the switch in the service time."""

    name: str = "hrrn"
    switch_aware: bool = True
    merge_rows: int = MOST_ROWS
    """Rows of a pass that gradients of several runs share; 0 is one run at a time."""

    def decide(self, view: DispatchView, state: State, now: float) -> tuple[DispatchPlan, State]:
        """Choose what ends an update that has begun, or else the highest ratio."""
        heads, held = heads_by_run(view)
        if not heads:
            return DispatchPlan(waits=held), state
        runs = {run.run_id: run for run in view.runs if run.run_id in heads}
        here = frozenset(view.resident)

        def rank(item: WorkItem) -> tuple[float, float, int]:
            run = runs[item.run_id]
            switch_s = item.switch_s if self.switch_aware and item.run_id not in here else 0.0
            level = max(-MOST_LEVELS, min(MOST_LEVELS, run.priority))
            waited_s = max(0.0, now - item.waiting_since_s)
            ratio = (
                max(run.weight, MIN_WEIGHT)
                * PER_PRIORITY**level
                * waited_s
                / service_s(item, switch_s)
            )
            return (-ratio, item.waiting_since_s, run.order)

        queue = finishing_first(sorted(heads.values(), key=rank))
        return serve(queue, held, along=company(queue, self.merge_rows)), state


def service_s(item: WorkItem, switch_s: float) -> float:
    """S: the operation and the switch before it."""
    return max(LEAST_S, item.est_s + switch_s)
