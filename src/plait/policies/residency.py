"""Residency: what becomes of a sample's cached keys and values while it waits for a tool.

An unheld block lasts about  turnover = idle blocks / blocks evicted per second.  A sample that is
back before that is kept ahead of all others, which evicts nobody who would have lasted. One that is
away for much longer would lose its blocks whatever is done, after having driven out others': it
gives them up at once; so does one whose cache is computed again in no time. In between, and where
nothing is being evicted, blocks are left to their turn.

It only says who goes first: blocks that are wanted are always given up in the end, so nothing can
lock up. Source: the three-way choice is ours; JigsawRL's M (recomputation of moved caches) is the
cost; preferring who is used soonest is Belady's rule.
"""

from dataclasses import dataclass

from plait.core.plan import Keep, ResidencyPlan
from plait.core.view import ToolWaitView
from plait.policies.protocol import State

TRIFLE_S = 0.01
"""To compute this much again costs less than the tool call's own overhead."""

GONE = 2.0
"""Turnovers after which blocks are as good as gone: waits are known no better than to a factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvResidency:
    """Keep who is back soon, drop who is not."""

    name: str = "kv"

    def decide(self, view: ToolWaitView, state: State, now: float) -> tuple[ResidencyPlan, State]:
        """Compare the wait with how long an unheld block lasts."""
        if view.evicted_per_s <= 0:
            return ResidencyPlan(keep=Keep.LEAVE, reason="nothing is being evicted"), state
        turnover_s = view.idle_blocks / view.evicted_per_s
        if view.recompute_s <= TRIFLE_S:
            return ResidencyPlan(keep=Keep.DROP, reason="computed again in no time"), state
        wait = f"back in {view.expected_wait_s:.2g} s, blocks last {turnover_s:.2g} s"
        if view.expected_wait_s <= turnover_s:
            return ResidencyPlan(keep=Keep.KEEP, reason=wait), state
        gone = view.expected_wait_s > GONE * turnover_s
        return ResidencyPlan(keep=Keep.DROP if gone else Keep.LEAVE, reason=wait), state


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAll:
    """Off: every sample's blocks are left to their turn."""

    name: str = "off"

    def decide(self, view: ToolWaitView, state: State, now: float) -> tuple[ResidencyPlan, State]:
        """Leave."""
        return ResidencyPlan(keep=Keep.LEAVE), state
