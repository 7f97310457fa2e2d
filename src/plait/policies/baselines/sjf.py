"""SJF: the shortest operation is next (baseline for highest response ratio).

Best mean wait where estimates are right, and no bound on anybody's: a long operation starves while
short ones keep coming. That is what it is here to show; there is no state.
"""

from dataclasses import dataclass

from plait.core.plan import DispatchPlan
from plait.core.view import DispatchView
from plait.policies.dispatch import arrival_order, finishing_first, heads_by_run, serve
from plait.policies.protocol import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestFirst:
    """The least expected time first, order of arrival among equals."""

    name: str = "sjf"

    def decide(self, view: DispatchView, state: State, now: float) -> tuple[DispatchPlan, State]:
        """Choose what ends an update that has begun, or else what is over soonest."""
        heads, held = heads_by_run(view)
        queue = sorted(arrival_order(view, heads), key=lambda item: item.est_s)
        return serve(finishing_first(queue), held), state
