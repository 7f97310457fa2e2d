"""Waits: the words in which every policy says why a run is not being served.

One ``Wait`` per waiting run, positions from 1 in order of service.
"""

from collections.abc import Sequence

from plait.core.plan import Wait
from plait.core.runs import Stage
from plait.core.view import RunView

KV_BUDGET = "kv_budget"
"""The cache has no room for the run's rollout beside those in flight."""
BARRIER = "barrier"
"""All runs of a round move together, and one is not there yet."""
TURN = "turn"
"""Only so many runs are served at once, and others are before it."""
TRAINER_BUSY = "trainer_busy"
"""Its training operation stands behind another."""
PAUSED = "paused"
"""Its owner paused it."""


def join(*parts: str) -> str:
    """Parts of a detail that have something to say, as one line."""
    return "; ".join(part for part in parts if part)


def paused(runs: Sequence[RunView]) -> tuple[Wait, ...]:
    """Waits of the runs that their owners paused."""
    return tuple(
        Wait(run_id=run.run_id, reason=PAUSED, detail="its owner paused it; resume it to go on")
        for run in runs
        if run.stage is Stage.PAUSED
    )
