"""Exact: the shortest schedule of runs that take turns on shared resources, by CP-SAT.

Stages are indivisible and a resource does one at a time, as in a shared training pool or in two
halves that pipelines alternate on: a small job shop. Spatial sharing is not in it (``bounds``).
Needs the extra ``bounds``; without it ``optimum_s`` returns ``None``.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

MISSING = "ortools is not installed: pip install 'plait[bounds]'"
TICKS_PER_S = 100
"""Whole numbers for the solver: a hundredth of a second."""
LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one run, alone."""

    rollout_s: float
    update_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run's steps, and how many versions its rollouts may be behind."""

    steps: tuple[Step, ...]
    ahead: int = 0
    rollout_on: str = ""
    """A resource that it shares for rollout; its own if empty."""
    update_on: str = "training"


def available() -> bool:
    """True where the solver is installed."""
    return find_spec("ortools") is not None


def optimum_s(runs: Sequence[Run], *, limit_s: float = LIMIT_S) -> float | None:
    """Makespan of the best schedule, or the solver's lower bound if it ran out of time."""
    if not available():
        return None
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    horizon = sum(_ticks(s.rollout_s) + _ticks(s.update_s) for run in runs for s in run.steps)
    busy: dict[str, list[object]] = defaultdict(list)

    def stage(name: str, seconds: float, resource: str):  # type: ignore[no-untyped-def]
        start = model.new_int_var(0, horizon, f"{name} begins")
        interval = model.new_fixed_size_interval_var(start, _ticks(seconds), name)
        busy[resource].append(interval)
        return start, start + _ticks(seconds)

    ends = []
    for r, run in enumerate(runs):
        committed = []
        rolled = None
        for i, step in enumerate(run.steps):
            own = run.rollout_on or f"rollout of {r}"
            begins, ends_at = stage(f"{r} rolls {i}", step.rollout_s, own)
            if rolled is not None:
                model.add(begins >= rolled)
            if i > run.ahead:
                model.add(begins >= committed[i - 1 - run.ahead])
            rolled = ends_at
            begins, ends_at = stage(f"{r} updates {i}", step.update_s, run.update_on)
            model.add(begins >= rolled)
            if committed:
                model.add(begins >= committed[-1])
            committed.append(ends_at)
        ends.append(committed[-1])
    for intervals in busy.values():
        model.add_no_overlap(intervals)
    last = model.new_int_var(0, horizon, "last")
    model.add_max_equality(last, ends)
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.solve(model)
    return solver.best_objective_bound / TICKS_PER_S


def _ticks(seconds: float) -> int:
    """Rounded down, so that the optimum stays a lower bound."""
    return max(0, int(seconds * TICKS_PER_S))
