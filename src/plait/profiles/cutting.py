"""Cutting: a replica's forward steps into spans of one resource profile (JigsawRL §4.1).

Bucket of a forward step by its tokens: ``decode`` [0, 128), ``batch`` [128, 1024), ``prefill``
[1024, ∞). A part goes on until another bucket has held for ``STABLE_STEPS`` forward steps in a row;
the boundary then lies before the first of those.

Waits for tools: while others of the replica go on (*per sample*), a wait is a part of its own
beside the one in which it began; where all wait (*blocked*, or the last ones), it stands between
two parts.

Invariants: every forward step is in exactly one part, in order; work is the time of the forward
steps themselves, so pauses for want of anything but a tool are left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plait.core.substages import Kind

BATCH_TOKENS, PREFILL_TOKENS = 128, 1024
"""Boundaries of the buckets (JigsawRL §4.1)."""
STABLE_STEPS = 10
"""L_s: suppresses fluctuations and keeps lasting shifts (JigsawRL §4.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One forward step of a run on a replica, or ``steps`` alike in a row."""

    t0_s: float
    t1_s: float
    tokens: int
    """Of all its steps together, prompts included."""
    steps: int = 1
    rows: int = 0
    """Sequences in it."""
    context: int = 0
    """Mean length of its sequences so far."""
    kv_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWait:
    """One sample's call, or, ``blocked``, one for all samples of the replica."""

    t0_s: float
    t1_s: float
    blocked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One sub-stage as it was, or as it is expected."""

    kind: Kind
    work_s: float
    tokens: float = 0.0
    """Per forward step, on average."""
    rows: float = 0.0
    """Most sequences at once; calls of a tool."""
    context: float = 0.0
    memory_bytes: float = 0.0
    """Beside the weights; the highest."""
    least_bytes: float = 0.0
    beside: bool = False
    """It runs beside the part that follows it in the list, not before it."""


def bucket(tokens: float) -> Kind:
    """The bucket of a forward step of ``tokens``."""
    if tokens < BATCH_TOKENS:
        return Kind.DECODE
    return Kind.BATCH if tokens < PREFILL_TOKENS else Kind.PREFILL


def boundaries(forwards: Sequence[Forward], stable_steps: int = STABLE_STEPS) -> list[int]:
    """Where parts begin: indices of forward steps, the first (0) included."""
    if not forwards:
        return []
    found = [0]
    current = candidate = _bucket(forwards[0])
    since = run = 0
    for i, forward in enumerate(forwards):
        now = _bucket(forward)
        if now is not candidate:
            candidate, since, run = now, i, 0
        run += forward.steps
        if candidate is not current and run >= stable_steps:
            current = candidate
            found.append(since)
    return found


def cut(
    forwards: Iterable[Forward],
    waits: Iterable[ToolWait] = (),
    *,
    stable_steps: int = STABLE_STEPS,
) -> tuple[Part, ...]:
    """Parts of one replica's rollout, in order."""
    steps = sorted(forwards, key=lambda f: f.t0_s)
    calls = sorted(waits, key=lambda w: w.t0_s)
    parts: list[Part] = []
    for episode, wait in _episodes(steps, calls, stable_steps):
        starts = boundaries(episode, stable_steps)
        for i, j in zip(starts, [*starts[1:], len(episode)], strict=True):
            until_s = episode[j].t0_s if j < len(episode) else episode[-1].t1_s
            parts += _beside(calls, episode[i].t0_s, until_s, episode[-1].t1_s)
            parts.append(_rollout(episode[i:j]))
        parts += wait
    return tuple(parts)


def _bucket(forward: Forward) -> Kind:
    return bucket(forward.tokens / max(1, forward.steps))


def _episodes(
    steps: Sequence[Forward], calls: Sequence[ToolWait], stable_steps: int
) -> list[tuple[list[Forward], list[Part]]]:
    """Forward steps between waits of the whole replica, each with the wait after it."""
    found: list[tuple[list[Forward], list[Part]]] = []
    begun = 0
    for i, step in enumerate(steps):
        following = steps[i + 1 : i + 2]
        wait = [part for after in following for part in _pause(calls, step, after, stable_steps)]
        if wait or not following:
            found.append((list(steps[begun : i + 1]), wait))
            begun = i + 1
    return found


def _pause(
    calls: Sequence[ToolWait], before: Forward, after: Forward, stable_steps: int
) -> list[Part]:
    """The wait between two forward steps, if calls that ended in it explain it. A call of single
    samples that ends in a pause shorter than ``stable_steps`` forward steps stopped nobody."""
    t0_s, t1_s = before.t1_s, after.t0_s
    long_s = stable_steps * (before.t1_s - before.t0_s) / max(1, before.steps)
    ended = [
        w
        for w in calls
        if w.t0_s < t1_s and t0_s < w.t1_s <= t1_s and (w.blocked or t1_s - t0_s >= long_s)
    ]
    if not ended:
        return []
    waited_s = max(w.t1_s for w in ended) - max(t0_s, min(w.t0_s for w in ended))
    return [Part(kind=Kind.TOOL, work_s=waited_s, rows=len(ended))]


def _beside(calls: Sequence[ToolWait], t0_s: float, t1_s: float, end_s: float) -> list[Part]:
    """The calls that were made between ``t0_s`` and ``t1_s`` and answered while others went on."""
    took = [min(w.t1_s, t1_s) - w.t0_s for w in calls if t0_s <= w.t0_s < t1_s and w.t1_s <= end_s]
    if not took:
        return []
    return [Part(kind=Kind.TOOL, work_s=max(took), rows=len(took), beside=True)]


def _rollout(forwards: Sequence[Forward]) -> Part:
    steps = max(1, sum(f.steps for f in forwards))
    return Part(
        kind=_bucket(forwards[0]),
        work_s=sum(f.t1_s - f.t0_s for f in forwards),
        tokens=sum(f.tokens for f in forwards) / steps,
        rows=max(f.rows for f in forwards),
        context=sum(f.context * f.steps for f in forwards) / steps,
        memory_bytes=max(f.kv_bytes for f in forwards),
        least_bytes=max(f.kv_bytes / max(1, f.rows) for f in forwards),
    )
