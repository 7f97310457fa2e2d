"""Round robin: runs take turns on a shared pool in a fixed circle (RollMux-like baseline).

RollMux time-multiplexes the phases of disaggregated jobs in a round-robin order that is fixed when
they are grouped. Here the circle is the order of submission; a run that has nothing to do when its
turn comes is passed by.

Invariants: between two turns of a run every other run that waited all the while has had one; what
ends an update that has begun goes first. State: the submission number of who was served last.
"""

from dataclasses import dataclass

from plait.core.plan import DispatchPlan
from plait.core.view import DispatchView
from plait.policies.dispatch import finishing_first, heads_by_run, serve
from plait.policies.protocol import State


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin:
    """The next in the circle that has something to do."""

    name: str = "round-robin"

    def decide(self, view: DispatchView, state: State, now: float) -> tuple[DispatchPlan, State]:
        """Choose what ends an update that has begun, or else the next in the circle."""
        heads, held = heads_by_run(view)
        order = {run.run_id: run.order for run in view.runs}
        last = int(state.get("last", -1))
        circle = sorted(heads.values(), key=lambda i: (order[i.run_id] <= last, order[i.run_id]))
        queue = finishing_first(circle)
        if queue and not queue[0].finishes:
            last = order[queue[0].run_id]
        return serve(queue, held), {"last": last}
