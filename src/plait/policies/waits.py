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
STRETCH = "stretch"
"""Another run beside those that are served would make steps longer than the target allows, or the
sum of all slower."""
QUOTA = "quota"
"""Its tenant has as much as it may have."""
DEVICES = "devices"
"""No node group has so many devices, or so much device memory, free."""
HOST_MEMORY = "host_memory"
"""No node group's hosts have room for its state."""
SLACK = "slack"
"""On every node group it, or somebody there, would be delayed by more than its slack."""
PROFILING = "profiling"
"""The groups that have room for it run something whose demand is not known yet."""
RESERVED = "reserved"
"""The group that has room for it is being kept for a run that came before it."""
BEHIND = "behind"
"""Others are before it, and it is looked at when they have been."""
NEVER_FITS = "never_fits"
"""No node group would be large enough even if it were empty."""


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
