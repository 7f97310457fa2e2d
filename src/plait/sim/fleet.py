"""Fleet: the engines that roll out for the same runs, and one step's rollout over them.

Groups go whole, one by one, to the engine with the least samples: a group's prompt is computed once
where it is. Left to others: who may roll out (``gate``), decoding (``engine``).
"""

from collections.abc import Callable, Sequence
from typing import Any

from plait.core.plan import Keep
from plait.sim.engine import Engine
from plait.sim.heap import Heap
from plait.sim.lengths import StepDraw
from plait.sim.portion import Portion, ToolSlots
from plait.sim.row import Row
from plait.sim.spec import JobSpec


class Rollout:
    """One step's samples, wherever they are."""

    def __init__(
        self,
        *,
        step: int,
        version: int,
        draw: StepDraw,
        now: float,
        done: "Done",
        drained: Callable[[], None] = lambda: None,
    ) -> None:
        """``drained``: called when one engine has no more of it and others have."""
        self.step, self.version, self.draw = step, version, draw
        self.began_s = now
        self.ended_s = 0.0
        self.portions: list[Any] = []
        """``Portion``, or what is left of one (``repeats``)."""
        self.n_tokens = 0
        """Prompts, responses and what tools returned, once it has ended."""
        self._left = 0
        self._done, self._drained = done, drained

    @property
    def trains(self) -> bool:
        """False where nothing is learned from it: an evaluation, or a step without signal."""
        recorded = self.draw.recorded
        return recorded is None or not (recorded.evaluates or recorded.trained_tokens == 0)

    def portion_ended(self, portion: object) -> None:
        """One engine has no more of it."""
        self._left -= 1
        if self._left == 0:
            self._done(self)
        else:
            self._drained()

    def expect(self, n_portions: int) -> None:
        self._left = n_portions


Done = Callable[[Rollout], None]


class Fleet:
    """Engines for the same runs."""

    def __init__(self, engines: Sequence[Engine], heap: Heap) -> None:
        self.engines, self._heap = list(engines), heap

    @property
    def idle(self) -> bool:
        """An engine has no samples."""
        return any(engine.load == 0 for engine in self.engines)

    def start(
        self,
        rollout: Rollout,
        *,
        spec: JobSpec,
        run: str,
        tools: ToolSlots,
        residency: Callable[[Row], Keep] | None = None,
        shares: Sequence[int] | None = None,
    ) -> None:
        """Divide the groups and begin. ``shares``: groups for each engine, by a balancing plan."""
        engines = [e for e in self.engines if not e.worker.lost] or self.engines
        draw = rollout.draw
        parts = _divide(len(draw.prompts), [e.load for e in engines], draw.group_size, shares)
        for engine, groups in zip(engines, parts, strict=True):
            if groups:
                portion = Portion(
                    spec=spec,
                    run=run,
                    step=rollout.step,
                    draw=rollout.draw,
                    engine=engine,
                    heap=self._heap,
                    tools=tools,
                    ended=rollout.portion_ended,
                    residency=residency,
                )
                rollout.portions.append(portion)
        rollout.expect(len(rollout.portions))
        filled = [groups for groups in parts if groups]
        for portion, groups in zip(list(rollout.portions), filled, strict=True):
            portion.start(groups)


def _divide(
    n_groups: int, loads: Sequence[int], size: int, shares: Sequence[int] | None
) -> list[list[int]]:
    """Groups for each engine."""
    parts: list[list[int]] = [[] for _ in loads]
    if shares is not None and len(shares) == len(loads) and sum(shares) == n_groups:
        at = 0
        for part, n in zip(parts, shares, strict=True):
            part.extend(range(at, at + n))
            at += n
        return parts
    load = list(loads)
    for group in range(n_groups):
        i = load.index(min(load))
        load[i] += size
        parts[i].append(group)
    return parts


def merge(rollout: Rollout, sources: Sequence[Engine], target: Engine) -> int:
    """Move the rollout's samples at ``sources`` to ``target``; their caches are computed again
    there. Returns how many samples moved."""
    moved = 0
    for portion in rollout.portions:
        if portion.left == 0 or portion.engine not in sources or portion.engine is target:
            continue
        rows = portion.engine.take(portion)
        portion.engine = target
        for row in rows:
            row.compute = row.context
        moved += portion.left
        if rows:
            target.submit(rows)
    return moved
