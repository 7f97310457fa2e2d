"""Profiling: which work is timed on this machine, and what is made of the times.

Alone: decode steps over rows and contexts, prefill, training (two sizes: a rate and an overhead),
reference, adapters and publication with all cores; one size of each over the possible numbers of
threads. Side by side: two processes, each kept to its share of the cores, for every pair of
rollout and training and every split that leaves each a core. Slowdowns are medians over medians.

Nothing is timed here: ``ask`` is, so that this can be tested.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from statistics import median
from typing import Protocol

from plait.cluster.bench import Ask
from plait.core.errors import EngineError
from plait.profiles.table import Point
from plait.sim.costs.measured import DecodePoint, Profile

MARGIN_TOKENS = 64
"""Of each row, beside its context: what is drawn, and blocks begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    """Of each row."""
    prefill_tokens: int
    train: tuple[tuple[int, int], ...]
    """Sequences and their length, small and large."""
    pair_rows: tuple[int, ...]
    """Rows of decode that are put beside others."""
    least_s: float
    units: int

    @property
    def cache_tokens(self) -> int:
        """What the largest of them needs."""
        return max(self.rows) * (max(self.contexts) + MARGIN_TOKENS) + self.prefill_tokens


QUICK = Plan(
    rows=(1, 8),
    contexts=(32,),
    prefill_tokens=128,
    train=((2, 32), (2, 64)),
    pair_rows=(8,),
    least_s=0.3,
    units=3,
)
"""To see that it works, and for a first idea."""
FULL = Plan(
    rows=(1, 8, 32, 64),
    contexts=(32, 256),
    prefill_tokens=512,
    train=((2, 64), (8, 64)),
    pair_rows=(8, 64),
    least_s=1.5,
    units=5,
)
"""Rows on both sides of where compute begins to count; 512 tokens are the most of one forward step
and of one micro-batch on a CPU."""

Asker = Callable[[Sequence[Ask]], Sequence[tuple[float, ...]]]
"""Times of one ask, or of two side by side."""


class Timer(Protocol):
    """Medians of the same."""

    def __call__(self, *asks: Ask) -> list[float | None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Work of one size, as the slowdown table knows it."""

    group: str
    tokens: int
    """Per unit: what the table calls tokens."""
    ask: Ask

    @property
    def name(self) -> str:
        return f"{self.ask.what} {self.tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that was measured."""

    costs: Profile
    points: tuple[Point, ...]
    alone: tuple[tuple[str, int, float], ...]
    """Work, threads, seconds of a unit."""
    skipped: tuple[str, ...]
    """What had no unit in its window."""


def splits(n_cores: int) -> tuple[int, ...]:
    """Numbers of threads below all: powers of two and their complements."""
    powers = {2**i for i in range(n_cores.bit_length())}
    return tuple(sorted(n for n in powers | {n_cores - p for p in powers} if 0 < n < n_cores))


class Profiling:
    """One measurement of one model on some cores (none: a device that has no shares to give)."""

    def __init__(self, plan: Plan, *, model: str, device: str, cores: Sequence[int]) -> None:
        self._plan, self._model, self._device = plan, model, device
        self._cores = tuple(cores)
        self._all = max(1, len(self._cores))
        self._splits = splits(len(self._cores))
        self._skipped: list[str] = []
        self._alone: dict[tuple[Load, int], float] = {}

    @property
    def loads(self) -> list[Load]:
        """What the slowdown table is about."""
        plan = self._plan
        decode = [
            Load(group="rollout", tokens=n, ask=self._ask("decode", n, min(plan.contexts)))
            for n in plan.pair_rows
        ]
        n, length = max(plan.train)
        return [
            *decode,
            Load(
                group="rollout",
                tokens=plan.prefill_tokens,
                ask=self._ask("prefill", 1, plan.prefill_tokens),
            ),
            Load(group="train", tokens=n * length, ask=self._ask("train", n, length)),
            Load(group="reference", tokens=n * length, ask=self._ask("reference", n, length)),
        ]

    @property
    def pairs(self) -> list[tuple[Load, Load]]:
        """What is put side by side: each with each, reference left out as it is like training."""
        loads = [load for load in self.loads if load.group != "reference"]
        return list(combinations_with_replacement(loads, 2)) if self._splits else []

    @property
    def n_measurements(self) -> int:
        """How often ``run`` will ask."""
        plan = self._plan
        costs = len(plan.rows) * len(plan.contexts) + len(plan.train) + 2
        return costs + len(self.loads) * (1 + len(self._splits)) + self._n_pairs

    @property
    def _n_pairs(self) -> int:
        halves = sum(2 * n <= self._all for n in self._splits)  # of two alike, one way round
        return sum(halves if a == b else len(self._splits) for a, b in self.pairs)

    def run(self, ask: Asker, told: Callable[[str], None]) -> Result:
        """Measure everything; ``told`` hears what comes next. EngineError if a load that the costs
        need had no unit in its window."""

        def time_of(*asks: Ask) -> list[float | None]:
            told(" beside ".join(f"{a.what} {a.rows}×{a.tokens} on {a.threads}" for a in asks))
            return [median(seconds) if seconds else None for seconds in ask(asks)]

        costs = self._costs(time_of)
        points = [*self._shares(time_of), *self._beside(time_of)]
        return Result(
            costs=costs,
            points=tuple(points),
            alone=tuple((load.name, n, s) for (load, n), s in self._alone.items()),
            skipped=tuple(self._skipped),
        )

    def _costs(self, time_of: Timer) -> Profile:
        plan = self._plan

        def one(ask: Ask) -> float:
            (seconds,) = time_of(ask)
            if seconds is None:
                raise EngineError(
                    f"{ask.what} of {ask.rows}×{ask.tokens} tokens took longer than its window: "
                    "end what else runs here, or use --quick"
                )
            return seconds

        decode = [
            DecodePoint(rows=n, context=n * context, seconds=one(self._ask("decode", n, context)))
            for n in plan.rows
            for context in plan.contexts
        ]
        small, large = (
            (n * length, one(self._ask("train", n, length))) for n, length in sorted(plan.train)
        )
        rows, context = max(plan.pair_rows), min(plan.contexts)
        plain = next(p.seconds for p in decode if (p.rows, p.context) == (rows, rows * context))
        adapted = one(self._ask("decode_adapter", rows, context))
        sync_s = one(self._ask("sync", 1, 1))
        for load in self.loads:
            self._alone[load, self._all] = one(load.ask)
        slope = max(1e-12, (large[1] - small[1]) / (large[0] - small[0]))
        by_group = {load.ask.what: (load.tokens, s) for (load, _), s in self._alone.items()}
        return Profile(
            model=self._model,
            device=self._device,
            decode=tuple(decode),
            adapter_step_s=max(0.0, adapted - plain),
            prefill_tokens_per_s=by_group["prefill"][0] / by_group["prefill"][1],
            train_tokens_per_s=1.0 / slope,
            train_overhead_s=max(0.0, large[1] - slope * large[0]),
            reference_tokens_per_s=by_group["reference"][0] / by_group["reference"][1],
            sync_s=sync_s,
        )

    def _shares(self, time_of: Timer) -> Iterator[Point]:
        for load in self.loads:
            for threads in self._splits:
                (seconds,) = time_of(self._with(load, self._cores[:threads]))
                if seconds is None:
                    self._skipped.append(f"{load.name} on {threads}")
                    continue
                self._alone[load, threads] = seconds
                yield self._point(load, threads, seconds, None)

    def _beside(self, time_of: Timer) -> Iterator[Point]:
        for a, b in self.pairs:
            for threads in self._splits:
                rest = self._all - threads
                if a == b and threads > rest:
                    continue
                both = time_of(
                    self._with(a, self._cores[:threads]), self._with(b, self._cores[threads:])
                )
                for own, other, n, seconds in ((a, b, threads, both[0]), (b, a, rest, both[1])):
                    if seconds is None:
                        self._skipped.append(f"{own.name} on {n} beside {other.name}")
                    else:
                        yield self._point(own, n, seconds, other)

    def _point(self, own: Load, threads: int, seconds: float, other: Load | None) -> Point:
        return Point(
            own=own.group,
            own_tokens=own.tokens,
            compute=threads / self._all,
            slowdown=seconds / self._alone[own, self._all],
            beside=other.group if other else None,
            beside_tokens=other.tokens if other else 0,
        )

    def _ask(self, what: str, rows: int, tokens: int) -> Ask:
        return Ask(what=what, rows=rows, tokens=tokens, threads=self._all, cores=self._cores)

    def _with(self, load: Load, cores: tuple[int, ...]) -> Ask:
        return replace(load.ask, threads=len(cores), cores=cores)
