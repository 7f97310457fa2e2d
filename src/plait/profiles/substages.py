"""Sub-stages: a run's expected step as the co-location policy is told of it (JigsawRL §4.1).

Each replica's rollout is a chain; a tool's call that others do not wait for is beside the part that
it overlaps, and what follows waits for both. Reward, reference, training and moves are chains of
their own that begin when every replica has rolled out, and each place in them waits for the place
before on all workers, since training is one operation over all of them.

Invariants: keys are unique; ``after`` names only sub-stages that are in the answer; what has ended
is left out; the graph has no cycles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plait.core.ids import RunId, WorkerId
from plait.core.substages import Kind, Substage
from plait.profiles.cutting import Part
from plait.profiles.graph import Graph, expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one chain has come in the step under way."""

    ended: int = 0
    """Places behind it."""
    done_s: float = 0.0
    """Of the work of the part that runs, as if alone."""


def substages(
    graph: Graph,
    *,
    run_id: RunId,
    step: int,
    weight_bytes: int = 0,
    train_bytes: int = 0,
    rollout: Mapping[WorkerId, Progress] | None = None,
    after: Mapping[WorkerId, Progress] | None = None,
) -> tuple[Substage, ...]:
    """What is left of the step, with the weights (and for training ``train_bytes``) in each
    sub-stage's memory."""
    name = _Names(run_id, step, weight_bytes, train_bytes)
    found: list[Substage] = []
    tails: list[str] = []
    for worker, chain in graph.rollout.items():
        before: tuple[str, ...] = ()
        beside: tuple[str, ...] = ()
        for place, part in _left(expected(chain), (rollout or {}).get(worker)):
            one = name.make(worker, f"{place}", part, before)
            found.append(one)
            if part.beside:
                beside += (one.key,)
            else:
                before, beside = (one.key, *beside), ()
        tails += [*before, *beside]
    chains = {
        worker: dict(_left(expected(chain), (after or {}).get(worker)))
        for worker, chain in graph.after.items()
    }
    barrier = tuple(tails)
    for place in sorted({place for parts in chains.values() for place in parts}):
        row = [
            name.make(worker, f"after-{place}", parts[place], barrier)
            for worker, parts in chains.items()
            if place in parts
        ]
        found += row
        barrier = tuple(one.key for one in row) or barrier
    return tuple(found)


def where(expected_parts: Sequence[Part], seen: Sequence[Part]) -> Progress:
    """How far a replica has come, from the parts of its step until now (``cut`` of the forward
    steps so far): each is looked for in order; one that was not expected is passed over."""
    place, done_s = 0, 0.0
    for part in seen:
        for i in range(place, len(expected_parts)):
            if (expected_parts[i].kind, expected_parts[i].beside) == (part.kind, part.beside):
                place, done_s = i + 1, part.work_s
                break
    return Progress(ended=max(0, place - 1), done_s=done_s)


def _left(parts: Sequence[Part], progress: Progress | None) -> list[tuple[int, Part]]:
    if progress is None:
        return list(enumerate(parts))
    left = list(enumerate(parts))[progress.ended :]
    if left and progress.done_s > 0:
        place, part = left[0]
        left[0] = (place, replace(part, work_s=max(0.0, part.work_s - progress.done_s)))
    return left


@dataclass(frozen=True, slots=True)
class _Names:
    run_id: RunId
    step: int
    weight_bytes: int
    train_bytes: int

    def make(self, worker: WorkerId, place: str, part: Part, after: tuple[str, ...]) -> Substage:
        held = 0
        if part.kind.on_device:
            held = self.weight_bytes + self.train_bytes * (part.kind is Kind.TRAIN)
        return Substage(
            key=f"{self.run_id}/{self.step}/{worker}/{place}",
            run_id=self.run_id,
            worker=worker,
            kind=part.kind,
            work_s=part.work_s,
            memory_bytes=held + round(part.memory_bytes),
            least_bytes=held + round(min(part.least_bytes, part.memory_bytes)),
            tokens=round(part.tokens),
            context=round(part.context),
            n_samples=round(part.rows),
            after=after,
        )
