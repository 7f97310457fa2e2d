"""Placement without demand traces (PlexRL Fig. 8 baselines; the rules are ours, the names theirs).

*Isolated*: devices of one's own, first come, first served. *Pack*: the fullest node group with the
memory. *Spread*: the one with the fewest runs. *Spread + Backfill*: who fits is placed while who
came before waits. The others place nobody before the first that waits.

Invariants: memory and the number of devices are kept; a bound run never moves; every run that is
not bound gets exactly one ``Wait``. With backfill a large run may wait for ever: that is the
baseline. Who can never fit holds up nobody. There is no state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from plait.core.placement import (
    Binding,
    GroupFacts,
    PlacementPlan,
    PlacementView,
    WaitingRun,
)
from plait.core.plan import Wait
from plait.policies import waits
from plait.policies.protocol import State


@dataclass(slots=True, kw_only=True)
class _Group:
    """A group in the course of one decision."""

    facts: GroupFacts
    free_bytes: int
    n_devices: int
    n_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFit:
    """Node groups by a simple rule."""

    name: str
    rule: Literal["isolated", "pack", "spread"]
    backfill: bool = False
    max_runs: int = 0
    """Of a group; 0 is as many as its hosts' memory holds."""

    def decide(self, view: PlacementView, state: State, now: float) -> tuple[PlacementPlan, State]:
        """Bind in order of arrival, priorities first."""
        groups = [
            _Group(
                facts=facts,
                free_bytes=facts.host_bytes - sum(run.host_bytes for run in facts.runs),
                n_devices=facts.n_devices,
                n_runs=len(facts.runs),
            )
            for facts in view.groups
        ]
        bind: list[Binding] = []
        told: list[Wait] = []
        first: WaitingRun | None = None
        for run in sorted(view.waiting, key=lambda r: (-r.priority, r.since_s, r.order)):
            reason, detail = waits.NEVER_FITS, "no group is large enough, even when empty"
            if any(_large_enough(facts, run) for facts in view.groups):
                if first is not None and not self.backfill:
                    reason, detail = waits.BEHIND, f"{first.run_id} is before it"
                else:
                    fits = [group for group in groups if self._has_room(group, run)]
                    if fits:
                        bind.append(self._take(min(fits, key=self._key), run))
                        continue
                    reason, detail = waits.DEVICES, f"needs {run.n_devices} devices and the memory"
                    first = first or run
            told.append(
                Wait(run_id=run.run_id, reason=reason, detail=detail, position=len(told) + 1)
            )
        return PlacementPlan(bind=tuple(bind), waits=tuple(told)), state

    def _has_room(self, group: _Group, run: WaitingRun) -> bool:
        return (
            _large_enough(group.facts, run)
            and group.n_devices >= run.n_devices
            and group.free_bytes >= run.host_bytes
            and not 0 < self.max_runs <= group.n_runs
        )

    def _take(self, group: _Group, run: WaitingRun) -> Binding:
        group.free_bytes -= run.host_bytes
        group.n_runs += 1
        if self.rule == "isolated":
            group.n_devices -= run.n_devices
        return Binding(run_id=run.run_id, group_id=group.facts.group_id, phase_s=0.0)

    @property
    def _key(self) -> Callable[[_Group], tuple[int, int]]:
        if self.rule == "pack":
            return lambda group: (-group.n_runs, group.free_bytes)
        if self.rule == "spread":
            return lambda group: (group.n_runs, -group.free_bytes)
        return lambda group: (0, 0)


def isolated() -> FirstFit:
    """Devices of one's own. The view counts only devices that nobody has."""
    return FirstFit(name="isolated", rule="isolated")


def pack() -> FirstFit:
    """The fullest group that has room."""
    return FirstFit(name="pack", rule="pack")


def spread(*, backfill: bool = False) -> FirstFit:
    """The group with the fewest runs."""
    return FirstFit(
        name="spread-backfill" if backfill else "spread", rule="spread", backfill=backfill
    )


def _large_enough(facts: GroupFacts, run: WaitingRun) -> bool:
    return (
        facts.n_devices >= run.n_devices
        and facts.device_bytes >= run.device_bytes
        and facts.host_bytes >= run.host_bytes
    )
