"""Record: what a simulation writes down as it happens.

Left to others: what the figures mean (``outcome``).
"""

from collections.abc import Callable
from typing import Any

from plait.core.substages import Kind
from plait.obs.records import DECISIONS_VERSION, plain
from plait.sim.outcome import Span
from plait.sim.worker import Activity, Worker


class Record:
    """Spans, sums and decisions."""

    def __init__(
        self,
        *,
        spans: bool,
        trace: list[dict[str, Any]] | None,
        policy: str,
        now: Callable[[], float],
    ) -> None:
        """``trace``: where decisions go, as rows like those of a launch's decisions.jsonl."""
        self.spans: list[Span] = []
        self.flops = 0.0
        self.switch_s = 0.0
        self.n_decisions = 0
        self.brought_device_s = 0.0
        self._keep, self._trace, self._policy, self._now = spans, trace, policy, now

    def span(self, worker: Worker, activity: Activity, t0: float, t1: float, share: float) -> None:
        """A stretch of one activity."""
        flops = activity.flops_done()
        self.flops += flops
        if activity.kind is Kind.MOVE:
            self.switch_s += (t1 - t0) * worker.n_devices
        if self._keep:
            self.spans.append(
                Span(
                    device=str(worker.worker_id),
                    n_devices=worker.n_devices,
                    kind=activity.kind,
                    job=activity.job,
                    t0=t0,
                    t1=t1,
                    flops=flops,
                    share=share,
                )
            )

    def decision(self, kind: str, policy: Any, view: Any, state: Any, plan: Any) -> None:
        """A policy's answer and all that it was told."""
        self.n_decisions += 1
        if self._trace is None:
            return
        now = self._now()
        self._trace.append(
            {
                "version": DECISIONS_VERSION,
                "t": round(now, 6),
                "now": now,
                "policy": self._policy,
                "options": {},
                "kind": kind,
                "decider": policy.name,
                "view": plain(view),
                "state": plain(state),
                "plan": plain(plan),
            }
        )
