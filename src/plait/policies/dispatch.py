"""Dispatch: which training-side operation runs next on a free worker (MARLaaS §4.2 and §4.5).

Updates are done for one run at a time, but for small gradients, which share a pass with those that
stand behind them (``company``). ``FairDispatch`` takes the head whose run is first in the
order of ``fairness`` (priority, weighted served work, then a run whose state is already on the
worker, then the longest wait). ``FifoDispatch`` is the paper's global FIFO buffer. Both finish an
update that has begun before they begin another: its optimizer step is short, and a run that had to
wait for it behind the others' gradients would publish when they all do, so that all runs went on in
lockstep and left the machine idle together.

Invariants: an item of a run that is paused or has ended is never chosen; whenever another item is
there one is chosen; every run that waits gets exactly one ``Wait``.

Left to others: bundling a run's operations into one item, the estimates, the switch itself.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from plait.core.ids import RunId
from plait.core.plan import DispatchPlan, Wait
from plait.core.runs import Stage
from plait.core.view import DispatchView, RunView, WorkItem
from plait.policies import waits
from plait.policies.company import MOST_ROWS, company
from plait.policies.fair_queue import FairQueue
from plait.policies.kept import take
from plait.policies.protocol import State
from plait.policies.queue_waits import QueueWaits


@dataclass(frozen=True, slots=True, kw_only=True)
class FairDispatch:
    """Weighted fair by served work, with ageing."""

    name: str = "fair"
    merge_rows: int = MOST_ROWS
    """Rows of a pass that gradients of several runs share; 0 is one run at a time."""

    def decide(self, view: DispatchView, state: State, now: float) -> tuple[DispatchPlan, State]:
        """Choose what ends an update that has begun, or else the head of the run that is first in
        fair order."""
        fair = take(state, FairQueue) or FairQueue()
        line = fair.observe(state, view)
        due = line.due(self.merge_rows)
        served = (*due[:1], *company(due, self.merge_rows))
        plan = DispatchPlan(
            op_id=served[0].op_id if served else None,
            along=tuple(item.op_id for item in served[1:]),
            waits=QueueWaits(
                n=len(line.keys) - len(served) + len(line.paused),
                n_served=len(served),
                order=lambda: list(line.queue()),
                held=lambda: held_up(view.items, line.paused),
                note=line.note,
            ),
        )
        # The end of an update is part of the turn in which it began.
        return plan, fair.settle(line, [item.run_id for item in served if not item.finishes])


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoDispatch:
    """First come, first served, update by update."""

    name: str = "fifo"
    merge_rows: int = MOST_ROWS
    """Rows of a pass that gradients of several runs share; 0 is one run at a time."""

    def decide(self, view: DispatchView, state: State, now: float) -> tuple[DispatchPlan, State]:
        """Choose what ends an update that has begun, or else what has waited longest."""
        heads, held = heads_by_run(view)
        queue = finishing_first(arrival_order(view, heads))
        along = company(queue, self.merge_rows)
        return serve(queue, held, along=along), state


def heads_by_run(view: DispatchView) -> tuple[dict[RunId, WorkItem], tuple[Wait, ...]]:
    """Each servable run's longest waiting item, and the waits of the runs that are paused."""
    asking = {item.run_id for item in view.items}
    stages = {run.run_id: run.stage for run in view.runs if run.run_id in asking}
    heads: dict[RunId, WorkItem] = {}
    paused = {run_id for run_id, stage in stages.items() if stage is Stage.PAUSED}
    for item in view.items:
        if stages[item.run_id].ended or item.run_id in paused:
            continue
        head = heads.get(item.run_id)
        if head is None or item.waiting_since_s < head.waiting_since_s:
            heads[item.run_id] = item
    return heads, held_up(view.items, paused)


def held_up(items: Sequence[WorkItem], paused: Collection[RunId]) -> tuple[Wait, ...]:
    """The waits of the runs that are paused."""
    held: dict[RunId, Wait] = {}
    for item in items if paused else ():
        if item.run_id in paused:
            detail = f"{item.kind} waits until the run is resumed"
            held[item.run_id] = Wait(run_id=item.run_id, reason=waits.PAUSED, detail=detail)
    return tuple(held.values())


def arrival_order(view: DispatchView, heads: dict[RunId, WorkItem]) -> list[WorkItem]:
    """Heads by waiting time, submission order among equals."""
    order = {run.run_id: run.order for run in view.runs}
    return sorted(heads.values(), key=lambda i: (i.waiting_since_s, order[i.run_id]))


def finishing_first(queue: Sequence[WorkItem]) -> list[WorkItem]:
    """The same order, but what ends an update that has begun goes before what begins one."""
    return sorted(queue, key=lambda item: not item.finishes)


def serve(
    queue: Sequence[WorkItem], held: tuple[Wait, ...], *, along: Sequence[WorkItem] = ()
) -> DispatchPlan:
    """Run the first of ``queue`` and those ``along``, which stand next; tell the others how much
    work is before them."""
    n_served = min(len(queue), 1 + len(along))
    return DispatchPlan(
        op_id=queue[0].op_id if queue else None,
        along=tuple(item.op_id for item in along),
        waits=QueueWaits(
            n=len(queue) - n_served + len(held),
            n_served=n_served,
            order=lambda: queue,
            held=lambda: held,
        ),
    )


def mid_update(run: RunView) -> bool:
    """True while the run's rollout is done and its update is not."""
    return run.stage in (Stage.WAIT_TRAIN, Stage.TRAIN)
