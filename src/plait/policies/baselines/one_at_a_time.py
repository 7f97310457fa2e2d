"""One job at a time, in submission order, each to its end (MARLaaS baselines).

``sequential`` is what people do by hand; ``single-disaggregated`` and ``single-collocated`` are the
paper's names for the same order on two workers or one.

Invariants: never two runs in the middle of a step; the current run stays current until it ends, is
paused, or does nothing for ``IDLE_GRACE_S``.
"""

from dataclasses import dataclass

from plait.core.plan import AdmissionPlan, Wait
from plait.core.runs import Stage
from plait.core.view import AdmissionView, RunView
from plait.policies import waits
from plait.policies.protocol import State

IDLE_GRACE_S = 60.0
"""How long a run that asks for nothing keeps its turn: far above what a controller needs between
two steps, short enough that a client that went to lunch does not hold the machine."""

MID_STEP = (Stage.ROLLOUT, Stage.WAIT_TRAIN, Stage.TRAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneAtATime:
    """Admit the current job only."""

    name: str = "one-at-a-time"

    def decide(self, view: AdmissionView, state: State, now: float) -> tuple[AdmissionPlan, State]:
        """Admit the current job if it waits and nobody is in the middle of a step."""
        live = sorted((run for run in view.runs if not run.stage.ended), key=lambda r: r.order)
        busy = [run for run in live if run.stage in MID_STEP]
        current = _current(live, busy, state.get("current"), now)
        queue = [run for run in live if run.stage is Stage.WAIT_ROLLOUT]
        admitted = () if busy else tuple(r.run_id for r in queue if r is current)
        waiting = [run for run in queue if run.run_id not in admitted]
        before = current.run_id if current is not None else ""
        plan = AdmissionPlan(
            admit=admitted,
            waits=(
                *(
                    Wait(
                        run_id=run.run_id,
                        reason=waits.TURN,
                        detail=f"one job at a time; {before} is being served",
                        position=place,
                    )
                    for place, run in enumerate(waiting, start=1)
                ),
                *waits.paused(view.runs),
            ),
        )
        return plan, {"current": None if current is None else current.run_id}


def asks(run: RunView, now: float) -> bool:
    """True unless the run is paused, has ended, or has long done nothing."""
    if run.stage.ended or run.stage is Stage.PAUSED:
        return False
    return run.stage is not Stage.IDLE or now - run.stage_since_s <= IDLE_GRACE_S


def _current(
    live: list[RunView], busy: list[RunView], before: str | None, now: float
) -> RunView | None:
    for run in live:
        if run.run_id == before and asks(run, now):
            return run
    # A run that is in the middle of a step must end it before another may begin.
    return next((run for run in (*busy, *live) if asks(run, now)), None)
