"""Fairness: in which order waiting runs are served, shared by admission and dispatch.

Start-time fair queueing over served work. Every run has a *tag*, its virtual time: each unit of
work raises it by ``1 / weight``, so equal tags mean weighted shares. Per priority there is a system
virtual time V, the highest tag that was granted in fair order. The order of waiting runs is

    the overdue one · higher priority · lower tag · (resident state) · longer wait · submission

Invariants: a newcomer starts at V (no claim on the past); who returns to the queue after having
asked for little keeps at most ``LAG_STEPS`` of its own steps as credit; a run that was overtaken
``AGE_GRANTS`` times becomes overdue and goes first, one such turn in ``AGE_GRANTS`` grants, so
priorities and small footprints delay but never starve. Fair order itself is no overtaking: a light
weight waits long without becoming overdue, hence shares converge under overload.

Left to others: what fits (admission), what runs (dispatch), and how work is measured (``served``).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.ids import RunId
from plait.core.view import RunView
from plait.policies.protocol import State

Entry = dict[str, Any]
"""Of one run: its ``tag``; what it had been ``served`` when it was last charged; ``waits``; its tag
when it last began to wait (``mark``), and what the ``step`` before that had added; how often it has
been overtaken since (``over``)."""

AGE_GRANTS = 8
"""Overtakings until a run is overdue, and grants between two overdue turns: the lowest priority
gets one turn in nine at least, the highest keeps eight."""
LAG_STEPS = 4.0
"""Credit that a run may carry into the queue, in its own steps: enough that a short gap between two
steps does not cost it its share, too little to shut out the others for long."""
MIN_WEIGHT = 1e-6
"""A weight of 0 would divide by zero; such a run is served when nobody else waits, or overdue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run that waits, since when."""

    run: RunView
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A waiting run with its place in the order."""

    run: RunView
    since_s: float
    tag: float
    step: float
    """By how much its last step raised its tag."""
    overtaken: int
    overdue: bool


def observe(state: State, runs: Sequence[RunView], claims: Sequence[Claim]) -> State:
    """Charge what was served since the last call, and enter who has begun to wait."""
    virtual: dict[str, float] = dict(state.get("virtual", {}))
    old: dict[str, Entry] = state.get("runs", {})
    waiting = {claim.run.run_id for claim in claims}
    new: dict[str, Entry] = {}
    for run in runs:
        run_id, ended = run.run_id, run.stage.ended
        if ended:
            continue
        known, waits = old.get(run_id), run_id in waiting
        if known is not None and known["served"] == run.served and known["waits"] == waits:
            # As it was: with thousands of runs nearly all are, and entries are never written to.
            new[run_id] = known
            continue
        level = virtual.get(str(run.priority), 0.0)
        new[run_id] = entered(known, run, waits=waits, level=level)
    return {"virtual": virtual, "runs": new, "since_overdue": int(state.get("since_overdue", 0))}


def entered(known: Entry | None, run: RunView, *, waits: bool, level: float) -> Entry:
    """The run's entry once it has been charged, and has begun to wait or no longer does; the same
    one where neither is so. ``level``: V of its priority."""
    if known is None:
        known = {"tag": level, "served": run.served, "mark": level, "waits": False, "over": 0}
    elif known["served"] == run.served and known["waits"] == waits:
        return known
    # ``served`` may go back (a resumed launch counts afresh); a tag never does.
    charge = max(0.0, run.served - known["served"]) / max(run.weight, MIN_WEIGHT)
    entry = {**known, "tag": known["tag"] + charge, "served": run.served}
    if waits and not known["waits"]:
        step = entry["tag"] - entry["mark"]
        entry["tag"] = max(entry["tag"], level - LAG_STEPS * step)
        entry["mark"], entry["step"] = entry["tag"], step
        entry["over"] = 0
    entry["waits"] = waits
    return entry


def rank(
    state: State, claims: Sequence[Claim], resident: Collection[RunId] = ()
) -> tuple[Ranked, ...]:
    """Order of service of the waiting runs, first one first."""
    entries = state["runs"]
    ordered = sorted(
        claims,
        key=lambda c: (
            -c.run.priority,
            entries[c.run.run_id]["tag"],
            c.run.run_id not in resident,
            c.since_s,
            c.run.order,
        ),
    )
    head = _overdue(state, ordered)
    if head is not None:
        ordered = [head, *(c for c in ordered if c is not head)]
    return tuple(
        Ranked(
            run=claim.run,
            since_s=claim.since_s,
            tag=entries[claim.run.run_id]["tag"],
            step=entries[claim.run.run_id].get("step", 0.0),
            overtaken=entries[claim.run.run_id]["over"],
            overdue=claim is head,
        )
        for claim in ordered
    )


def settle(state: State, ranked: Sequence[Ranked], granted: Collection[RunId]) -> State:
    """Book the grants: V rises, and who was overtaken is told so."""
    virtual = dict(state["virtual"])
    runs = dict(state["runs"])
    since_overdue = state["since_overdue"]
    losers = [(i, r) for i, r in enumerate(ranked) if r.run.run_id not in granted]
    for place, winner in enumerate(ranked):
        if winner.run.run_id not in granted:
            continue
        runs[winner.run.run_id] = {**runs[winner.run.run_id], "waits": False, "over": 0}
        if winner.overdue:
            # Who waits behind an overdue run was not overtaken, and V is about fair order only.
            since_overdue = 0
            continue
        since_overdue += 1
        level = str(winner.run.priority)
        virtual[level] = max(virtual.get(level, 0.0), winner.tag)
        for loser_place, loser in losers:
            if loser_place < place or loser.run.priority < winner.run.priority:
                entry = runs[loser.run.run_id]
                runs[loser.run.run_id] = {**entry, "over": entry["over"] + 1}
    return {"virtual": virtual, "runs": runs, "since_overdue": since_overdue}


def standing(entry: Ranked) -> str:
    """How near a waiting run is to its guaranteed turn, in words for its owner."""
    return aged(entry.overtaken, overdue=entry.overdue)


def aged(overtaken: int, *, overdue: bool) -> str:
    """The same."""
    if overdue:
        return f"overtaken {overtaken} times, so its turn is next"
    if overtaken:
        return f"overtaken {overtaken} times; goes first from {AGE_GRANTS} on"
    return ""


def _overdue(state: State, ordered: Sequence[Claim]) -> Claim | None:
    if state["since_overdue"] < AGE_GRANTS:
        return None
    entries = state["runs"]
    due = [c for c in ordered if entries[c.run.run_id]["over"] >= AGE_GRANTS]
    return min(due, key=lambda c: (c.since_s, c.run.order), default=None)
