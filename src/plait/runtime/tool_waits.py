"""Tool waits: what becomes of a sample's cache while it waits, as the residency policy decides.

Effects only: it keeps what the workers report of their caches and how long each run's tools take,
asks the policy as a wait begins, and passes its answer on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from plait.core.ids import WorkerId
from plait.core.plan import Keep
from plait.core.view import ToolWaitView
from plait.policies.protocol import Residency, State
from plait.profiles import timing, turnover
from plait.profiles.turnover import CacheProfile
from plait.runtime import messages as m
from plait.runtime.facts import RunFacts
from plait.runtime.journal import Journal
from plait.runtime.samples import Samples

KIND = "tool"
"""Name of these waits among a run's service times."""


class ToolWaits:
    """Residency of waiting samples, applied."""

    def __init__(
        self,
        policy: Residency,
        samples: Samples,
        *,
        now: Callable[[], float],
        journal: Journal,
    ) -> None:
        self._policy, self._samples = policy, samples
        self._now, self._journal = now, journal
        self._caches: dict[WorkerId, CacheProfile] = {}
        self._state: State = {}

    def reported(self, worker_id: WorkerId, span: m.Span) -> None:
        """A worker's account of some forward steps."""
        if span.kind == "rollout":
            self._caches[worker_id] = turnover.update(
                self._caches.get(worker_id, CacheProfile()),
                now=self._now(),
                tokens=span.tokens,
                busy_s=span.t1 - span.t0,
                n_evicted=span.n_evicted,
                idle_blocks=span.kv_blocks_idle,
            )

    def lost(self, worker_id: WorkerId) -> None:
        """A worker is gone, and its cache with it."""
        self._caches.pop(worker_id, None)

    @contextmanager
    def wait(self, facts: RunFacts, tokens: tuple[int, ...], version: int | None) -> Iterator[None]:
        """A sample that ``version`` has brought to ``tokens`` waits for a tool in the block."""
        began = self._now()
        view = self._view(facts, len(tokens), began)
        before = self._state
        plan, self._state = self._policy.decide(view, before, began)
        self._journal.decision("residency", view, before, plan)
        if plan.keep is not Keep.LEAVE:
            self._samples.mark_prefix(facts.spec.run_id, version, tokens, plan.keep)
        try:
            yield
        finally:
            seen = timing.TimingObservation(kind=KIND, tokens=0, seconds=self._now() - began)
            facts.timing = timing.update(facts.timing, seen)

    def _view(self, facts: RunFacts, n_tokens: int, now: float) -> ToolWaitView:
        caches = self._caches.values()
        return ToolWaitView(
            run_id=facts.spec.run_id,
            tokens=n_tokens,
            expected_wait_s=timing.expected_s(facts.timing, KIND),
            recompute_s=n_tokens * max((c.s_per_token for c in caches), default=0.0),
            idle_blocks=sum(c.idle_blocks for c in caches),
            evicted_per_s=sum(turnover.evicted_per_s(c, now) for c in caches),
        )
