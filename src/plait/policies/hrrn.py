"""HRRN: the operation with the highest response ratio is next (PlexRL §4, eq. 3 and Fig. 5).

    S = E + [its state is elsewhere] · (offload + load)        P = 1 + w · W / S

W is how long it has waited, E its expected time, w its run's weight times 2 per priority level. A
short operation of a run whose state is here goes first; waiting raises every P without bound, so
nothing starves and priorities only hasten. Since a run of one model's operations needs one switch,
they follow each other until somebody else's wait outweighs it.

Invariants: an item of a run that is paused or has ended is never chosen; whenever another item is
there one is chosen; what ends an update that has begun goes first; every run that waits gets
exactly one ``Wait``. An operation that has begun is not interrupted. There is no state but an index
(``kept``).

Left to others: the ratios (``ratios``), the estimates and the switch itself. ``switch_aware=False``
is plain HRRN, the baseline: its service time leaves the switch out.
"""

from dataclasses import dataclass

from plait.core.plan import DispatchPlan
from plait.core.view import DispatchView
from plait.policies.company import MOST_ROWS, company
from plait.policies.dispatch import held_up
from plait.policies.kept import Kept, take
from plait.policies.protocol import State
from plait.policies.queue_waits import QueueWaits
from plait.policies.ratios import Ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class HrrnDispatch:
    """Highest response ratio next, the switch in the service time."""

    name: str = "hrrn"
    switch_aware: bool = True
    merge_rows: int = MOST_ROWS
    """Rows of a pass that gradients of several runs share; 0 is one run at a time."""

    def decide(self, view: DispatchView, state: State, now: float) -> tuple[DispatchPlan, State]:
        """Choose what ends an update that has begun, or else the highest ratio."""
        ratios = take(state, Ratios)
        if ratios is None or ratios.switch_aware != self.switch_aware:
            ratios = Ratios(switch_aware=self.switch_aware)
        ratios.follow(view)
        ranking, paused = ratios.at(now), frozenset(ratios.heads.paused)
        first = ranking.first
        served = [] if first is None else [first]
        if first is not None and 0 < first.rows < self.merge_rows:
            served += company(ranking.queue(), self.merge_rows)
        plan = DispatchPlan(
            op_id=served[0].op_id if served else None,
            along=tuple(item.op_id for item in served[1:]),
            waits=QueueWaits(
                n=len(ratios.heads.of) - len(served) + len(paused),
                n_served=len(served),
                order=ranking.queue,
                held=lambda: held_up(view.items, paused),
            ),
        )
        return plan, Kept(state, ratios)
