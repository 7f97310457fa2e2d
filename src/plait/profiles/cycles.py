"""Cycles: the steps of a run that somebody else drives, seen from its operations alone.

A cycle lies between two markers, operations of one kind that mark a step best. Candidates are the
kinds themselves; that one is taken after which most cycles have what a step is made of (samples,
gradients, an optimizer step; of these what the run uses at all). Of equally good ones the shortest
counts: an optimizer step for each of four mini-batches marks no step, as three of four have no
samples; a publication every tenth step marks none, as there is a shorter cycle that is complete.
Period and stages are medians over recent cycles, so that a missing, doubled or late operation
shifts nothing. A run that samples only now and then (an evaluation every tenth step) has that for
its cycle: it is when its use of the machine repeats.

Invariants: operations may come in any order and overlap, and the answer does not depend on the
order; nothing is inferred from fewer than ``LEAST_CYCLES`` cycles; values are immutable.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

KEPT = 4096
"""Operations that are looked at: tens of steps of a run that asks for each sample by itself."""
LEAST_CYCLES = 2
"""A period needs two, to be told from a pause."""
RECENT = 10
"""Cycles that count: neighbouring steps look alike, distant ones drift (JigsawRL Fig. 6)."""
USUAL = 0.5
"""A kind belongs to the cycle if at least so many cycles have it."""
AS_GOOD = 0.05
"""A marker whose cycles lack so little more is as good, if they are shorter."""
SHORTER = 0.75
"""By so much, since two markers of one step have the same period but for jitter."""
ESSENTIAL = ("sample", "forward_backward", "optim_step")
MARKERS = ("optim_step", "publish", "forward_backward", "sample")
"""Candidates; the first of equals is taken: a step ends when its update is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation: asked for at ``t0_s``, answered at ``t1_s``."""

    kind: str
    t0_s: float
    t1_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A run's recent operations."""

    ops: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeen:
    """What one kind of operation does in a cycle. Times from the cycle's beginning."""

    kind: str
    begins_s: float
    ends_s: float
    busy_s: float
    """Time in which at least one is under way."""
    count: float
    """Operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """A run's step as its operations show it."""

    marker: str
    period_s: float
    spread_s: float
    """Median departure from the period."""
    n_cycles: int
    last_s: float
    """When the last cycle ended and the one under way began."""
    stages: tuple[StageSeen, ...]
    """In the order in which they begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The operation that is expected."""

    kind: str
    at_s: float


def observe(stream: Stream, op: Op) -> Stream:
    """The stream with one more operation; one that ends before it begins is ignored."""
    if not op.t1_s >= op.t0_s:
        return stream
    return Stream(ops=(*stream.ops, op)[-KEPT:])


def infer(stream: Stream) -> Cycle | None:
    """The run's cycle; ``None`` while none can be told."""
    ops = sorted(stream.ops, key=lambda o: (o.t0_s, o.t1_s, o.kind))
    best: tuple[float, Cycle] | None = None
    for marker in MARKERS:
        found = _by(marker, ops)
        if found is None:
            continue
        if best is None or _beats(found, best):
            best = found
    return best[1] if best else None


def expected_next(cycle: Cycle, stream: Stream, now_s: float) -> Next:
    """What the run is expected to ask for next, not before ``now_s``: the first kind of which the
    cycle under way has fewer than usual, else the first of the next cycle. A kind whose time is
    over while later ones have begun is left out this time."""
    since = Counter(o.kind for o in stream.ops if cycle.last_s <= o.t0_s <= now_s)
    for i, stage in enumerate(cycle.stages):
        have, want = since[stage.kind], max(1, round(stage.count))
        over = now_s > cycle.last_s + stage.ends_s
        if have >= want or (over and any(since[s.kind] for s in cycle.stages[i + 1 :])):
            continue
        # The first comes when the stage begins, the others are spread over it.
        at_s = cycle.last_s + stage.begins_s + (stage.ends_s - stage.begins_s) * have / want
        return Next(kind=stage.kind, at_s=max(now_s, at_s))
    first = cycle.stages[0]
    at_s = cycle.last_s + cycle.period_s + first.begins_s
    return Next(kind=first.kind, at_s=max(now_s, at_s))


def _beats(new: tuple[float, Cycle], old: tuple[float, Cycle]) -> bool:
    if abs(new[0] - old[0]) > AS_GOOD:
        return new[0] > old[0]
    return new[1].period_s < SHORTER * old[1].period_s


def _by(marker: str, ops: Sequence[Op]) -> tuple[float, Cycle] | None:
    """How complete the cycles between ``marker``s are, and the cycle."""
    ends = _ends(marker, ops)[-RECENT - 1 :]
    if len(ends) <= LEAST_CYCLES:
        return None
    cycles = _divide(marker, ops, ends)
    have = Counter(kind for cycle in cycles for kind in {o.kind for o in cycle})
    used = [kind for kind in ESSENTIAL if any(o.kind == kind for o in ops)]
    complete = sum(have[kind] for kind in used) / (len(cycles) * len(used)) if used else 0.0
    intervals = [b - a for a, b in pairwise(ends)]
    period_s = median(intervals)
    stages = [_stage(kind, cycles, ends) for kind, n in have.items() if n >= USUAL * len(cycles)]
    if period_s <= 0 or not stages:
        return None
    return complete, Cycle(
        marker=marker,
        period_s=period_s,
        spread_s=median(abs(i - period_s) for i in intervals),
        n_cycles=len(cycles),
        last_s=ends[-1],
        stages=tuple(sorted(stages, key=lambda s: (s.begins_s, s.kind))),
    )


def _ends(marker: str, ops: Sequence[Op]) -> list[float]:
    """When the marker's blocks end: those with nothing else begun in between are one."""
    marks = sorted((o for o in ops if o.kind == marker), key=lambda o: (o.t1_s, o.t0_s))
    others = [o.t0_s for o in ops if o.kind != marker]
    ends: list[float] = []
    for mark in marks:
        between = bisect_left(others, mark.t0_s) - bisect_left(others, ends[-1]) if ends else 1
        if between <= 0:
            ends[-1] = mark.t1_s
        else:
            ends.append(mark.t1_s)
    return ends


def _divide(marker: str, ops: Sequence[Op], ends: Sequence[float]) -> list[list[Op]]:
    """Operations by the cycle in which they begin; a marker's by the cycle that it ends."""
    cycles: list[list[Op]] = [[] for _ in ends[1:]]
    for op in ops:
        if op.kind == marker:
            place = bisect_left(ends, op.t1_s) - 1
        else:
            place = bisect_right(ends, op.t0_s) - 1
        if 0 <= place < len(cycles):
            cycles[place].append(op)
    return cycles


def _stage(kind: str, cycles: Sequence[Sequence[Op]], ends: Sequence[float]) -> StageSeen:
    seen = [
        (start, mine)
        for start, cycle in zip(ends, cycles, strict=False)
        if (mine := [o for o in cycle if o.kind == kind])
    ]
    return StageSeen(
        kind=kind,
        begins_s=median(min(o.t0_s for o in mine) - start for start, mine in seen),
        ends_s=median(max(o.t1_s for o in mine) - start for start, mine in seen),
        busy_s=median(_union(mine) for _, mine in seen),
        count=median(len(mine) for _, mine in seen),
    )


def _union(ops: Iterable[Op]) -> float:
    total, until_s = 0.0, float("-inf")
    for op in sorted(ops, key=lambda o: o.t0_s):
        total += max(0.0, op.t1_s - max(op.t0_s, until_s))
        until_s = max(until_s, op.t1_s)
    return total
