"""Adaptive admission: as many runs at once as pay, none more than the latency target allows.

MARLaaS names it as future work; others' replications show both what is gained (two to four runs)
and that sharing can lose outright. The control law, over *seats*, of which a run needs one to roll
out and which it keeps from step to step:

    every epoch (each seated run has finished about ``EPOCH_STEPS`` steps) measure
        x = Σ steps · alone_s / seconds      work done per second, in seconds alone
        s = max tpts_s / alone_s             the worst stretch of those seated
    s > target · (1 + BAND)                        →  seats · target / s, one fewer at least
    the last move was up, x < x_before · (1+GAIN)  →  one fewer: sharing did not pay;
                                                      that many are not tried for ``HOLD`` epochs
    s ≤ target · (1 − BAND), somebody waits        →  one more
    otherwise                                      →  as it is

It begins with one seat, so that the first run's time alone is measured before it is shared. Under
the seats the KV budget remains the hard rule: ``KvAdmission`` decides who of those that may.

Invariants: there is one seat at least; nobody waits for ever, because a run that has had
``SEAT_STEPS`` steps yields to who waits, and who that is follows ``fairness``; every waiting run
gets exactly one ``Wait``. Stretch is that of seated runs: who waits for a seat is told so.

Left to others: measuring ``tpts_s`` and ``alone_s``. Where no ``alone_s`` is known a run counts its
steps by ``tpts_s``, and has no stretch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plait.core.errors import ConfigError
from plait.core.ids import RunId
from plait.core.plan import AdmissionPlan, Wait
from plait.core.runs import Stage
from plait.core.view import AdmissionView, RunView
from plait.policies import fairness, waits
from plait.policies.admission import KvAdmission
from plait.policies.baselines.one_at_a_time import asks
from plait.policies.fairness import Claim, Ranked
from plait.policies.protocol import State

Control = dict[str, Any]
"""``seats``; ``move``: its last change; ``x`` and ``s`` of the last epoch; ``held``: by number of
seats, until when it is not tried, and for how long that is; ``at``, ``steps``: when the epoch began
and where the runs were; ``waited``: somebody had no seat."""

STRETCH = 2.0
"""Of the worst run, if nobody says otherwise: with up to this much two runs still gain over one
after the other, and more is rarely worth its wait to an owner."""
EPOCH_STEPS = 2
"""Of each seated run, on average: the first after a change still shows the time before it."""
BAND = 0.1
"""Each way: step times of one run vary by about as much, so less is no news."""
GAIN = 0.02
"""One more run must add this much to the throughput, else it only makes everybody slower."""
HOLD = 8
"""Epochs until a number of seats that did not pay is tried again, doubled each time it fails."""
MOST_HOLD = 64
SEAT_STEPS = 4
"""Steps after which a seat is given up to who waits: changing costs the newcomer one odd step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveAdmission:
    """Seats by measured stretch and throughput, over a KV budget."""

    inner: KvAdmission = field(default_factory=KvAdmission)
    stretch: float = STRETCH
    """Target of the worst seated run, against alone; 0 is none."""
    name: str = "adaptive"

    def __post_init__(self) -> None:
        if self.stretch != 0.0 and not self.stretch >= 1.0:
            raise ConfigError(
                f"a stretch of {self.stretch}: nobody is faster shared than alone, so it is at "
                "least 1 (or 0 for no target)"
            )

    def decide(self, view: AdmissionView, state: State, now: float) -> tuple[AdmissionPlan, State]:
        """Move the number of seats, give free ones out, and let ``inner`` admit who has one."""
        live = {run.run_id: run for run in view.runs}
        old: Mapping[str, int] = state.get("seated", {})
        seated = {r: began for r, began in old.items() if r in live and asks(live[RunId(r)], now)}
        control = _controlled(state.get("control"), live, old, seated, self.stretch, now)
        asking = [r for r in view.runs if r.stage is Stage.WAIT_ROLLOUT]
        claims = [
            Claim(run=run, since_s=run.stage_since_s) for run in asking if run.run_id not in seated
        ]
        fair = fairness.observe(state.get("fair", {}), view.runs, claims)
        ranked = fairness.rank(fair, claims)
        seated = _yielded(seated, asking, len(ranked), control["seats"])
        taken = [entry.run for entry in ranked[: max(0, control["seats"] - len(seated))]]
        seated |= {run.run_id: run.step for run in taken}
        fair = fairness.settle(fair, ranked, [run.run_id for run in taken])
        out = [run for run in asking if run.run_id not in seated]
        hidden = {run.run_id for run in out}
        left = tuple(run for run in view.runs if run.run_id not in hidden)
        plan, inner = self.inner.decide(replace(view, runs=left), state.get("inner", {}), now)
        told = _told(out, ranked, len(seated), control, sum(w.position > 0 for w in plan.waits))
        control = {**control, "waited": control["waited"] or bool(out)}
        kept = {"control": control, "seated": seated, "fair": fair, "inner": inner}
        return replace(plan, waits=(*plan.waits, *told)), kept


def _controlled(
    control: Control | None,
    live: Mapping[RunId, RunView],
    before: Mapping[str, int],
    seated: Mapping[str, int],
    target: float,
    now: float,
) -> Control:
    """The control law, once per epoch."""
    steps = {run_id: run.step for run_id, run in live.items()}
    if control is None:
        control = {"seats": 1, "move": 0, "x": 0.0, "s": 0.0, "epoch": 0, "held": {}}
        return {**control, "at": now, "steps": steps, "waited": False}
    done = {r: steps[r] - control["steps"].get(r, steps[r]) for r in steps}
    seconds = now - control["at"]
    if sum(done.values()) < EPOCH_STEPS * max(1, len(seated)) or seconds <= 0.0:
        # A run that has ended takes its steps along: what is left cannot be compared.
        whole = control.get("whole", True) and set(before) <= set(live)
        return {**control, "whole": whole}
    x = sum(n * (live[r].alone_s or live[r].tpts_s or 1.0) for r, n in done.items()) / seconds
    s = max((_stretch(live[RunId(r)], began) for r, began in seated.items()), default=0.0)
    seats, epoch, held = control["seats"], control["epoch"] + 1, dict(control["held"])
    full = str(seats)
    comparable = control["move"] > 0 and control.get("whole", True)
    move = 0
    if target and s > target * (1.0 + BAND):
        move = max(1, int(seats * target / s)) - seats if seats > 1 else 0
        move = min(move, -1) if seats > 1 else 0
        held[full] = _longer(held.get(full), epoch)
    elif comparable and x < control["x"] * (1.0 + GAIN):
        move = -1 if seats > 1 else 0
        held[full] = _longer(held.get(full), epoch)
    elif control["waited"] and (not target or s <= target * (1.0 - BAND)):
        move = 1 if held.get(str(seats + 1), [0, 0])[0] <= epoch else 0
    return {
        "seats": seats + move,
        "move": move,
        "x": x,
        "s": s,
        "epoch": epoch,
        "held": held,
        "at": now,
        "steps": steps,
        "waited": False,
    }


def _longer(held: list[int] | None, epoch: int) -> list[int]:
    """Until which epoch this many seats are not tried, and for how long that is."""
    hold = HOLD if held is None else min(MOST_HOLD, 2 * held[1])
    return [epoch + hold, hold]


def _stretch(run: RunView, began: int) -> float:
    """Of a run that has been seated for some whole steps; 0 where it is not known."""
    if run.alone_s <= 0.0 or run.step - began < EPOCH_STEPS:
        return 0.0
    return run.tpts_s / run.alone_s


def _yielded(
    seated: Mapping[str, int], asking: Sequence[RunView], n_waiting: int, seats: int
) -> dict[str, int]:
    """Who keeps its seat: between two steps those give it up who have had theirs for long, while
    somebody waits, or while there are more than there should be."""
    left = dict(seated)
    between = sorted(
        (r for r in asking if r.run_id in left), key=lambda r: (left[r.run_id] - r.step, r.order)
    )
    wanted = n_waiting - max(0, seats - len(left))
    for run in between:
        if len(left) > seats or (wanted > 0 and run.step - left[run.run_id] >= SEAT_STEPS):
            wanted -= len(left) <= seats
            del left[run.run_id]
    return left


def _told(
    out: Sequence[RunView],
    ranked: Sequence[Ranked],
    n_seated: int,
    control: Control,
    n_before: int,
) -> list[Wait]:
    """Waits of those without a seat, in the order in which they get one."""
    detail = f"{n_seated} runs are served at once, of {control['seats']} that pay"
    if control["s"] > 0.0:
        detail += f"; the slowest takes {control['s']:.1f} times as long as alone"
    entries = {entry.run.run_id: entry for entry in ranked}
    place = {entry.run.run_id: i for i, entry in enumerate(ranked)}
    queue = sorted(out, key=lambda run: (place.get(run.run_id, len(ranked)), run.order))
    return [
        Wait(
            run_id=run.run_id,
            reason=waits.STRETCH,
            detail=waits.join(
                detail, fairness.standing(entries[run.run_id]) if run.run_id in entries else ""
            ),
            position=n_before + i,
        )
        for i, run in enumerate(queue, start=1)
    ]
