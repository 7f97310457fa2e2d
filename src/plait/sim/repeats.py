"""Repeats: rollouts that are done again without their rows, in the fluid mode over long horizons.

With the option ``draws`` = n a job's steps are drawn n different times and then over again. On
engines of its own a rollout takes what it took with the same draw before, so from then on it is one
event. What it computed, held and was charged is counted as it was then.

Left to others: whether engines are a run's own (``full``), and which draw a step has (``jobs``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.sim.engine import Engine
from plait.sim.fleet import Rollout
from plait.sim.heap import Heap
from plait.sim.portion import Portion
from plait.sim.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeat:
    """A rollout as it went."""

    seconds: float
    portions: list[Portion]
    flops: float
    busy_s: tuple[float, ...]
    """Of each engine's worker."""


class Repeats:
    """One run's rollouts by their draw."""

    def __init__(
        self, engines: Sequence[Engine], *, draws: int, heap: Heap, record: Record
    ) -> None:
        """``draws``: different ones; 0: nothing is repeated."""
        self._engines, self._draws, self._heap, self._record = engines, draws, heap, record
        self._known: dict[int, _Repeat] = {}
        self._busy_s: tuple[float, ...] = ()
        self._flops = 0.0

    def start(self, rollout: Rollout, anew: Callable[[Rollout], None]) -> None:
        """Begin a rollout: as it went before, or ``anew``."""
        known = self._known.get(rollout.step % self._draws) if self._draws else None
        if known is None:
            self._busy_s, self._flops = self._done()
            anew(rollout)
            return
        rollout.expect(1)
        rollout.portions = known.portions
        self._heap.after(known.seconds, self._again, (rollout, known))

    def ended(self, rollout: Rollout) -> None:
        """A rollout has ended; the first of its draw is kept."""
        draw = rollout.step % self._draws if self._draws else 0
        if not self._draws or draw in self._known:
            return
        busy_s, flops = self._done()
        self._known[draw] = _Repeat(
            seconds=self._heap.now - rollout.began_s,
            portions=rollout.portions,
            flops=flops - self._flops,
            busy_s=tuple(b - a for a, b in zip(self._busy_s, busy_s, strict=True)),
        )

    def forget(self) -> None:
        """The run is over."""
        self._known.clear()

    def _again(self, began: tuple[Rollout, _Repeat]) -> None:
        rollout, known = began
        if rollout.portions[0].dropped:
            return
        self._record.flops += known.flops
        for engine, busy_s in zip(self._engines, known.busy_s, strict=True):
            engine.worker.busy_s += busy_s
        rollout.portion_ended(rollout.portions[0])

    def _done(self) -> tuple[tuple[float, ...], float]:
        flops = sum(e.costs.flops(round(e.batch.n_tokens)) for e in self._engines)
        for engine in self._engines:
            engine.worker.sync()
        return tuple(engine.worker.busy_s for engine in self._engines), flops
