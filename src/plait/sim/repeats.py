"""Repeats: rollouts that are done again without their rows, in the fluid mode over long horizons.

With the option ``draws`` = n a job's steps are drawn n different times and then over again. On
engines of its own a rollout takes what it took with the same draw before, so from then on it is one
event. What it computed, held and was charged is counted as it was then. Several simulations of the
same jobs may share what they know: whose update is next changes nothing about a rollout apart.

Left to others: whether engines are a run's own (``full``), and which draw a step has (``jobs``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from plait.sim.engine import Engine
from plait.sim.fleet import Rollout
from plait.sim.heap import Heap
from plait.sim.portion import Portion
from plait.sim.record import Record
from plait.sim.row import Row

Known = dict[Any, "Repeat"]
"""By run, its engines and the draw."""


@dataclass(slots=True, kw_only=True)
class Part:
    """What is left of a portion that has ended."""

    n_tokens: int
    device_s: float
    held_s: float
    throttled: bool
    left: int = 0
    dropped: bool = False

    @property
    def engine(self) -> "Part":
        """None: it gives back no samples."""
        return self

    def take(self, portion: object) -> list[Row]:
        return []


def part_of(portion: Portion | Part) -> Part:
    """Its sums."""
    return Part(
        n_tokens=portion.n_tokens,
        device_s=portion.device_s,
        held_s=portion.held_s,
        throttled=portion.throttled,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A rollout as it went."""

    seconds: float
    parts: tuple[Part, ...]
    flops: float
    busy_s: tuple[float, ...]
    """Of each engine's worker."""


class Repeats:
    """One run's rollouts by their draw."""

    def __init__(
        self,
        run: str,
        engines: Sequence[Engine],
        *,
        draws: int,
        known: Known,
        heap: Heap,
        record: Record,
    ) -> None:
        """``draws``: different ones; 0: nothing is repeated."""
        self._run, self._engines, self._draws, self._known = run, engines, draws, known
        self._heap, self._record = heap, record
        self._busy_s: tuple[float, ...] = ()
        self._flops = 0.0

    def start(self, rollout: Rollout, anew: Callable[[Rollout], None]) -> None:
        """Begin a rollout: as it went before, or ``anew``."""
        known = self._known.get(self._key(rollout)) if self._draws else None
        if known is None:
            self._busy_s, self._flops = self._done()
            anew(rollout)
            return
        rollout.expect(1)
        rollout.portions = [part_of(part) for part in known.parts]
        self._heap.after(known.seconds, self._again, (rollout, known))

    def ended(self, rollout: Rollout) -> None:
        """A rollout has ended; the first of its draw is kept."""
        if not self._draws or self._key(rollout) in self._known:
            return
        busy_s, flops = self._done()
        self._known[self._key(rollout)] = Repeat(
            seconds=self._heap.now - rollout.began_s,
            parts=tuple(part_of(portion) for portion in rollout.portions),
            flops=flops - self._flops,
            busy_s=tuple(b - a for a, b in zip(self._busy_s, busy_s, strict=True)),
        )

    def _again(self, began: tuple[Rollout, Repeat]) -> None:
        rollout, known = began
        if rollout.portions[0].dropped:
            return
        self._record.flops += known.flops
        for engine, busy_s in zip(self._engines, known.busy_s, strict=True):
            engine.worker.busy_s += busy_s
        rollout.portion_ended(rollout.portions[0])

    def _key(self, rollout: Rollout) -> tuple[str, int, int, int]:
        width = self._engines[0].worker.n_devices
        return self._run, len(self._engines), width, rollout.step % self._draws

    def _done(self) -> tuple[tuple[float, ...], float]:
        flops = sum(e.costs.flops(round(e.batch.n_tokens)) for e in self._engines)
        for engine in self._engines:
            engine.worker.sync()
        return tuple(engine.worker.busy_s for engine in self._engines), flops
