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

from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.ids import RunId
from plait.core.plan import DispatchPlan, Wait
from plait.core.runs import Stage
from plait.core.view import DispatchView, RunView, WorkItem
from plait.policies import fairness, waits
from plait.policies.company import MOST_ROWS, company
from plait.policies.fairness import Claim
from plait.policies.protocol import State


@dataclass(frozen=True, slots=True, kw_only=True)
class FairDispatch:
    """Weighted fair by served work, with ageing."""

    name: str = "fair"
    merge_rows: int = MOST_ROWS
    """Rows of a pass that gradients of several runs share; 0 is one run at a time."""

    def decide(self, view: DispatchView, state: State, now: float) -> tuple[DispatchPlan, State]:
        """Choose what ends an update that has begun, or else the head of the run that is first in
        fair order."""
        heads, held = heads_by_run(view)
        by_id = {run.run_id: run for run in view.runs if run.run_id in heads}
        claims = [
            Claim(run=by_id[run_id], since_s=item.waiting_since_s) for run_id, item in heads.items()
        ]
        state = fairness.observe(state, view.runs, claims)
        ranked = fairness.rank(state, claims, view.resident)
        queue = finishing_first([heads[entry.run.run_id] for entry in ranked])
        along = company(queue[: 1 + len(fairness.due_next(ranked))], self.merge_rows)
        plan = serve(
            queue,
            held,
            along=along,
            notes={entry.run.run_id: fairness.standing(entry) for entry in ranked},
        )
        # The end of an update is part of the turn in which it began.
        begun = [item.run_id for item in (*queue[:1], *along) if not item.finishes]
        return plan, fairness.settle(state, ranked, begun)


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
    paused: dict[RunId, Wait] = {}
    for item in view.items:
        stage = stages[item.run_id]
        if stage.ended:
            continue
        if stage is Stage.PAUSED:
            detail = f"{item.kind} waits until the run is resumed"
            paused[item.run_id] = Wait(run_id=item.run_id, reason=waits.PAUSED, detail=detail)
            continue
        head = heads.get(item.run_id)
        if head is None or item.waiting_since_s < head.waiting_since_s:
            heads[item.run_id] = item
    return heads, tuple(paused.values())


def arrival_order(view: DispatchView, heads: dict[RunId, WorkItem]) -> list[WorkItem]:
    """Heads by waiting time, submission order among equals."""
    order = {run.run_id: run.order for run in view.runs}
    return sorted(heads.values(), key=lambda i: (i.waiting_since_s, order[i.run_id]))


def finishing_first(queue: Sequence[WorkItem]) -> list[WorkItem]:
    """The same order, but what ends an update that has begun goes before what begins one."""
    return sorted(queue, key=lambda item: not item.finishes)


def serve(
    queue: Sequence[WorkItem],
    held: tuple[Wait, ...],
    *,
    along: Sequence[WorkItem] = (),
    notes: dict[RunId, str] | None = None,
) -> DispatchPlan:
    """Run the first of ``queue`` and those ``along``, which stand next; tell the others how much
    work is before them."""
    waiting: list[Wait] = []
    ahead_s = 0.0
    for place, item in enumerate(queue):
        if place > len(along):
            before = queue[place - 1].run_id
            detail = f"{item.kind} stands behind {before}, about {ahead_s:.1f} s of work"
            waiting.append(
                Wait(
                    run_id=item.run_id,
                    reason=waits.TRAINER_BUSY,
                    detail=waits.join(detail, (notes or {}).get(item.run_id, "")),
                    position=place - len(along),
                )
            )
        ahead_s += item.est_s
    return DispatchPlan(
        op_id=queue[0].op_id if queue else None,
        along=tuple(item.op_id for item in along),
        waits=(*waiting, *held),
    )


def mid_update(run: RunView) -> bool:
    """True while the run's rollout is done and its update is not."""
    return run.stage in (Stage.WAIT_TRAIN, Stage.TRAIN)
