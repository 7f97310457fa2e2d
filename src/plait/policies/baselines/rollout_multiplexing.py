"""Rollout multiplexing (MuxServe-like, JigsawRL Fig. 4c): rollouts of several runs share a worker,
everything else has it alone.

What a published system for serving does when it is given RL pipelines: decode batches side by side,
the memory divided evenly, and training serialised because of what it holds. A stage of training
begins when no rollout is left on the worker and goes before new rollouts.

Left to others: how long anything takes; the baseline does not look at it.
"""

from dataclasses import dataclass

from plait.core.colocation import ColocationPlan, ColocationView, Share
from plait.core.ids import RunId, WorkerId
from plait.core.plan import Wait
from plait.core.substages import Substage
from plait.policies.protocol import State
from plait.policies.waits import TURN

AT_ONCE = 2
"""Rollouts on a worker, as in the other co-location policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMultiplexing:
    """Rollouts in even parts; training and reference alone, as they came."""

    name: str = "rollout-multiplexing"

    def decide(
        self, view: ColocationView, state: State, now: float
    ) -> tuple[ColocationPlan, State]:
        """Shares until the next sub-stage ends."""
        running = set(view.running)
        held = dict(view.held_bytes)
        shares: list[Share] = []
        waits: dict[RunId, Wait] = {}
        here: dict[WorkerId, list[Substage]] = {w.worker_id: [] for w in view.workers}
        for substage in view.substages:
            if substage.after:
                continue
            if substage.kind.on_device:
                here[substage.worker].append(substage)
            else:
                shares.append(Share(key=substage.key, compute=1.0, memory_bytes=0))
        for facts in view.workers:
            ready = sorted(here[facts.worker_id], key=lambda s: s.key not in running)
            chosen = self._chosen(ready, running)
            part = facts.memory_bytes // max(1, len(chosen))
            free = facts.memory_bytes - sum(held.get(s.key, 0) for s in chosen)
            for substage in chosen:
                n_bytes = held.get(substage.key, 0)
                if substage.key not in running:
                    n_bytes = max(0, min(part, substage.memory_bytes, free))
                    if n_bytes < substage.least_bytes:
                        waits.setdefault(
                            substage.run_id, Wait(run_id=substage.run_id, reason="memory")
                        )
                        continue
                    free -= n_bytes
                shares.append(
                    Share(key=substage.key, compute=1.0 / len(chosen), memory_bytes=n_bytes)
                )
            for substage in ready:
                if substage not in chosen:
                    waits.setdefault(substage.run_id, Wait(run_id=substage.run_id, reason=TURN))
        return ColocationPlan(shares=tuple(shares), waits=tuple(waits.values())), state

    def _chosen(self, ready: list[Substage], running: set[str]) -> list[Substage]:
        """Of one worker's ready sub-stages, running ones first."""
        rollouts = [s for s in ready if s.kind.rolls_out]
        others = [s for s in ready if not s.kind.rolls_out]
        if others and (others[0].key in running or not any(s.key in running for s in rollouts)):
            return others[:1]
        if others:
            return [s for s in rollouts if s.key in running][:AT_ONCE]
        return rollouts[:AT_ONCE]
