"""Moves: samples under way go on at another rollout worker, as the policy decides.

Effects only: it keeps what the workers report of their forward steps, asks the policy whenever that
or what is under way has changed, and passes its answer on.
"""

from collections.abc import Callable

from plait.core.ids import WorkerId
from plait.core.view import MovesView, RolloutLoad
from plait.engines.protocol import ModelShape
from plait.policies.protocol import Moves as Policy
from plait.policies.protocol import State
from plait.runtime import messages as m
from plait.runtime.journal import Journal
from plait.runtime.samples import Samples
from plait.runtime.settings import Settings


class Moves:
    """Even work for rollout workers."""

    def __init__(
        self,
        policy: Policy,
        samples: Samples,
        *,
        shape: ModelShape,
        settings: Settings,
        now: Callable[[], float],
        journal: Journal,
    ) -> None:
        self._policy, self._samples = policy, samples
        self._settings = settings
        self._kv_bytes = settings.block_bytes(shape) // settings.block_size
        self._now, self._journal = now, journal
        self._last: dict[WorkerId, m.Span] = {}
        self._state: State = {}

    def reported(self, worker_id: WorkerId, span: m.Span) -> None:
        """A worker's account of some forward steps."""
        if span.kind == "rollout":
            self._last[worker_id] = span
            self._samples.stepped(worker_id, span.steps)

    def lost(self, worker_id: WorkerId) -> None:
        """A worker is gone."""
        self._last.pop(worker_id, None)

    def decide(self) -> None:
        """Ask the policy and apply its plan."""
        n_by_worker = self._samples.loads()
        if len(n_by_worker) < 2 or not self._last:
            return
        view = MovesView(
            workers=tuple(self._load(w, n) for w, n in n_by_worker.items()),
            samples=self._samples.movable(),
            max_seqs=self._settings.max_seqs,
            lends=self._settings.elastic or self._settings.device != "cpu",
            s_per_token=self._s_per_token(),
            kv_bytes_per_token=self._kv_bytes,
        )
        before = self._state
        plan, self._state = self._policy.decide(view, before, self._now())
        if plan.source is not None and plan.target is not None:
            self._journal.decision("moves", view, before, plan)
            self._samples.move(plan.op_ids, plan.source, plan.target, kv=plan.kv)

    def _load(self, worker_id: WorkerId, n_samples: int) -> RolloutLoad:
        span = self._last.get(worker_id)
        return RolloutLoad(
            worker_id=worker_id,
            n_samples=n_samples,
            n_waiting=min(n_samples, span.n_waiting) if span else 0,
            step_s=(span.t1 - span.t0) / span.steps if span else 0.0,
        )

    def _s_per_token(self) -> float:
        """At the rate of the last forward steps; drawing takes longer than computing again does."""
        return max((s.t1 - s.t0) / max(1, s.tokens) for s in self._last.values())
