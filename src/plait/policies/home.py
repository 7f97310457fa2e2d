"""Home: which of several training workers does a run's updates.

A run's weights and moments are on one worker at a time, and its gradients share passes with those
of runs that are there too. A run comes to the worker with the fewest, and leaves it between two
updates if another has at least two fewer, as when the runs there have ended: what moves is read
from the committed version, so it costs the reading of an adapter.

Invariants: runs that come one by one differ by at most one between any two workers; a run that
stays is not read again; no run goes back and forth, since every move evens the workers out.

Left to others: the order of service on each worker (``dispatch``); the cores, which busy workers
divide among themselves (``runtime.shares``).
"""

from dataclasses import dataclass

from plait.core.plan import HomePlan
from plait.core.view import HomeView
from plait.policies.protocol import State

WORTH_MOVING = 2
"""Fewer runs elsewhere: with one fewer, the run would only take the burden along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestRuns:
    """Even out the number of live runs."""

    name: str = "fewest"

    def decide(self, view: HomeView, state: State, now: float) -> tuple[HomePlan, State]:
        """Stay, or go where the fewest are; ties go to the first by name."""
        n_by_worker = dict(view.others)
        idlest = min(n_by_worker, key=lambda w: (n_by_worker[w], w))
        if view.home is None:
            return HomePlan(worker_id=idlest, reason="has the fewest runs"), state
        # Itself counts where it is.
        fewer = n_by_worker[view.home] + 1 - n_by_worker[idlest]
        if fewer < WORTH_MOVING:
            return HomePlan(worker_id=view.home, reason="is there"), state
        return HomePlan(worker_id=idlest, reason=f"has {fewer} runs fewer"), state
