"""Graph: a run's step as it is expected, from its recent steps (JigsawRL §4.1, Fig. 6).

One list of parts per replica, then the stages that follow all of them. A new step is laid over the
graph part by part: parts of one kind in the same order are one part (longest common subsequence),
and fade into each other; what recent steps mostly lacked is left out.

Invariants: the rollout work of a replica is the fading mean of its recent steps' (what is left out
is spread over the rest); after one step the graph is that step; values are immutable. A mean lags
behind lengths that drift by about ``DECAY / (1 - DECAY)`` steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from plait.core.ids import WorkerId
from plait.core.substages import Kind
from plait.profiles.cutting import Part

DECAY = 0.7
"""Weight of the past at each new step: about three deep, since lengths drift as a policy learns but
hardly between neighbouring steps (JigsawRL Fig. 6); the same as for the cache (``profiles.kv``)."""
SHOWN = 0.5
"""A part counts if at least so much of the recent steps had it."""
FORGOTTEN = 0.05
"""Below this a part is no longer looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """One finished step, alone or with the slowdown taken out of its times."""

    rollout: Mapping[WorkerId, Sequence[Part]]
    """What ``cutting.cut`` made of each replica."""
    after: Mapping[WorkerId, Sequence[Part]] = field(default_factory=dict)
    """What follows when all replicas have rolled out: reward, reference, training, moves, each on
    the workers that do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faded:
    """A part and how much of the recent steps had it."""

    part: Part
    """Fading mean over the steps that had it."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One worker's parts."""

    parts: tuple[Faded, ...] = ()
    weight: float = 0.0
    """Steps that it has been seen in, fading."""
    work_s: float = 0.0
    """The same of the work of one step, times weight; waits for tools not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A run's expected step."""

    rollout: Mapping[WorkerId, Chain] = field(default_factory=dict)
    after: Mapping[WorkerId, Chain] = field(default_factory=dict)
    n_steps: int = 0


def update(graph: Graph, seen: StepSeen) -> Graph:
    """The graph after one more step; an estimate (no steps yet) is replaced. A replica that the
    step did not have is forgotten: its samples went to others."""
    if graph.n_steps == 0:
        graph = Graph()
    return Graph(
        rollout={w: _lay(graph.rollout.get(w, Chain()), p) for w, p in seen.rollout.items()},
        after={w: _lay(graph.after.get(w, Chain()), p) for w, p in seen.after.items()},
        n_steps=graph.n_steps + 1,
    )


def expected(chain: Chain) -> tuple[Part, ...]:
    """The parts that recent steps mostly had, with the work of all of them."""
    shown = [f.part for f in chain.parts if f.weight >= SHOWN * chain.weight]
    work_s = _work(shown)
    if work_s <= 0:
        return tuple(shown)
    scale = chain.work_s / chain.weight / work_s
    return tuple(p if p.kind is Kind.TOOL else replace(p, work_s=p.work_s * scale) for p in shown)


def step_s(graph: Graph) -> float:
    """Length of the expected step alone: the longest replica, then what follows."""
    rollout = max((_length(expected(c)) for c in graph.rollout.values()), default=0.0)
    after = max((_length(expected(c)) for c in graph.after.values()), default=0.0)
    return rollout + after


def _length(parts: Sequence[Part]) -> float:
    return sum(p.work_s for p in parts if not p.beside)


def _work(parts: Sequence[Part]) -> float:
    return sum(p.work_s for p in parts if p.kind is not Kind.TOOL)


def _lay(chain: Chain, seen: Sequence[Part]) -> Chain:
    merged: list[Faded] = []
    i = j = 0
    pairs = [*_common([f.part for f in chain.parts], seen), (len(chain.parts), len(seen))]
    for a, b in pairs:
        merged += [replace(f, weight=f.weight * DECAY) for f in chain.parts[i:a]]
        merged += [Faded(part=part) for part in seen[j:b]]
        if a < len(chain.parts):
            merged.append(_fade(chain.parts[a], seen[b]))
        i, j = a + 1, b + 1
    weight = DECAY * chain.weight + 1.0
    return Chain(
        parts=tuple(f for f in merged if f.weight >= FORGOTTEN * weight),
        weight=weight,
        work_s=DECAY * chain.work_s + _work(seen),
    )


def _fade(past: Faded, seen: Part) -> Faded:
    old = DECAY * past.weight
    weight = old + 1.0

    def mean(a: float, b: float) -> float:
        return (old * a + b) / weight

    p = past.part
    return Faded(
        part=Part(
            kind=p.kind,
            work_s=mean(p.work_s, seen.work_s),
            tokens=mean(p.tokens, seen.tokens),
            rows=mean(p.rows, seen.rows),
            context=mean(p.context, seen.context),
            memory_bytes=max(mean(p.memory_bytes, seen.memory_bytes), seen.memory_bytes),
            least_bytes=max(mean(p.least_bytes, seen.least_bytes), seen.least_bytes),
            beside=p.beside,
        ),
        weight=weight,
    )


def _common(a: Sequence[Part], b: Sequence[Part]) -> list[tuple[int, int]]:
    """Places of the longest common subsequence, by kind; of several, the first in ``a``."""
    length = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            length[i][j] = (
                length[i + 1][j + 1] + 1
                if _alike(a[i], b[j])
                else max(length[i + 1][j], length[i][j + 1])
            )
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if _alike(a[i], b[j]):
            found.append((i, j))
            i, j = i + 1, j + 1
        elif length[i + 1][j] >= length[i][j + 1]:
            i += 1
        else:
            j += 1
    return found


def _alike(a: Part, b: Part) -> bool:
    return a.kind is b.kind and a.beside == b.beside
