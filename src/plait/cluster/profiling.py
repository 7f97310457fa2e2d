"""Profiling: which work is timed on this machine, and what is made of the times.

Alone: decode steps over rows and contexts, prefill, training (two sizes: a rate and an overhead),
reference, adapters and publication with all cores; one size of each over the possible numbers of
threads. Side by side: two processes, each kept to its share of the cores, for every pair of
rollout and training and every split that leaves each a core. Slowdowns are medians over medians.

Nothing is timed here: ``ask`` is, so that this can be tested.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

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


def run(
    plan: Plan, ask: Asker, *, model: str, cores: Sequence[int], told: Callable[[str], None]
) -> Result:
    """Measure everything; ``told`` hears what comes next."""
    return _Profiling(plan, ask, model, tuple(cores), told).run()


def n_steps(plan: Plan, n_cores: int) -> int:
    """How often ``told`` will be called."""
    loads = _loads(plan, n_cores)
    pairs = len(loads) * (len(loads) + 1) // 2 * max(0, n_cores - 1)
    extra = 5  # prefill and reference are among the loads; adapters, sync, decode, training
    return len(plan.rows) * len(plan.contexts) + extra + len(loads) * len(splits(n_cores)) + pairs


def splits(n_cores: int) -> tuple[int, ...]:
    """Numbers of threads below all: powers of two and their complements."""
    powers = {2**i for i in range(n_cores.bit_length())}
    return tuple(sorted(n for n in powers | {n_cores - p for p in powers} if 0 < n < n_cores))
