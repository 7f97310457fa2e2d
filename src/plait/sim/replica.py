"""Replica: one run's step on one slice that it shares, as the sub-stages of JigsawRL §4.1.

Rollout changes its kind with the tokens of a forward step and waits for tools in between;
reference and training follow when the whole batch has been rolled out and rewarded. What is still
to come is told from the step before, as its sub-stages went then (JigsawRL,
Fig. 6: steps resemble each other),
and in the first step from the cost model.

Training's time includes the new weights' way to rollout, and loads and offloads where the optimizer
does not fit beside the cache. Left to others: what may run (``mux``).
"""

from collections.abc import Callable
from dataclasses import replace

from plait.core.ids import RunId
from plait.core.substages import Kind, Substage
from plait.sim.batch import Batch, kind_of
from plait.sim.costs.protocol import Costs
from plait.sim.engine import Engine
from plait.sim.entrance import HEADROOM_STEPS
from plait.sim.fleet import Rollout
from plait.sim.row import Row
from plait.sim.stretch import Phase, Stretch
from plait.sim.worker import Fixed

LEAST_LEFT = 0.05
"""Of what a sub-stage was expected to take: it is never said to take no time at all any more."""


class Replica:
    """One run on one slice."""

    def __init__(
        self,
        *,
        run_id: RunId,
        place: int,
        engine: Engine,
        costs: Costs,
        least_tokens: int,
        misjudged: float,
        now: Callable[[], float],
    ) -> None:
        """``least_tokens``: of cache, its longest sample."""
        self.run_id, self.engine, self.worker = run_id, engine, engine.worker
        self._place, self._costs, self._now = place, costs, now
        self._least_tokens, self._misjudged = least_tokens, misjudged
        self.rollouts: list[Rollout] = []
        self.phases: list[Phase] = []
        self.fixed: Fixed | None = None
        self.kind: Kind | None = None
        self.running = False
        self.step = 0
        self._at = 0
        self._since_s = 0.0
        self._work_0 = 0.0
        self._samples_0 = 0
        self._context_0 = 0
        self._went: list[Stretch] = []
        self._expected: list[Stretch] = []

    @property
    def key(self) -> str:
        """Of its current sub-stage."""
        return f"{self.run_id}/{self.step}/{self._place}/{self._at}"

    @property
    def rolls_here(self) -> bool:
        """Some of its samples have not ended."""
        return self._samples() > 0

    def begin(self, rollout: Rollout) -> None:
        """A new step: the last one is what is expected of it."""
        self._close()
        self.rollouts.append(rollout)
        self.step, self._at = rollout.step, 0
        self._expected, self._went = self._went or self._foreseen(), []
        self._count()

    def left(self, rollout: Rollout) -> None:
        """A rollout has ended. The next may begin at this very moment, and is another sub-stage."""
        if rollout in self.rollouts:
            self.rollouts.remove(rollout)
        if not self.rollouts:
            self.engine.held_back = True
            self.refresh()

    def refresh(self) -> None:
        """Notice which sub-stage it is in now."""
        kind = self._now_kind()
        if kind is self.kind:
            return
        self._close()
        both_roll = self.kind is not None and kind is not None
        both_roll = both_roll and self.kind.rolls_out and kind.rolls_out  # type: ignore[union-attr]
        self.running = self.running and bool(both_roll)
        if not both_roll:
            self.engine.held_back = True
        self.kind = kind
        if kind is not None:
            self._since_s = self._now()
            self._count()

    @property
    def since_s(self) -> float:
        """When its current sub-stage became ready."""
        return self._since_s

    def substages(self) -> list[Substage]:
        """The current one, and those that follow it in its rollout or its update."""
        if self.kind is None:
            return []
        out = [self._current()]
        if not (self.kind.rolls_out or self.kind is Kind.TOOL):
            for i, phase in enumerate(self.phases[1:], start=1):
                out.append(self._phase(phase, self._at + i, (out[-1].key,)))
            return out
        for i, stretch in enumerate(self._to_come(), start=1):
            tokens = stretch.n_samples * stretch.context
            n_bytes = 0 if stretch.kind is Kind.TOOL else tokens * self._costs.kv_bytes_per_token
            out.append(
                Substage(
                    key=f"{self.run_id}/{self.step}/{self._place}/{self._at + i}",
                    run_id=self.run_id,
                    worker=self.worker.worker_id,
                    kind=stretch.kind,
                    work_s=stretch.work_s * self._misjudged,
                    memory_bytes=n_bytes,
                    least_bytes=min(n_bytes, self.least_bytes),
                    tokens=stretch.n_samples if stretch.kind.rolls_out else 0,
                    context=stretch.context,
                    n_samples=stretch.n_samples,
                    after=(out[-1].key,),
                )
            )
        return out

    def coming(self, phases: list[Phase], after: tuple[str, ...]) -> list[Substage]:
        """Its update, while the batch is still being made."""
        out: list[Substage] = []
        for i, phase in enumerate(phases):
            key = f"u{i}"
            out.append(self._phase(phase, key, (out[-1].key,) if out else after))
        return out

    def next_phase(self) -> None:
        """The current phase of its update has ended."""
        self.fixed = None
        self.phases.pop(0)
        self.kind, self.running = None, False
        self._at += 1

    def _phase(self, phase: Phase, at: int | str, after: tuple[str, ...]) -> Substage:
        return Substage(
            key=f"{self.run_id}/{self.step}/{self._place}/{at}",
            run_id=self.run_id,
            worker=self.worker.worker_id,
            kind=phase.kind,
            work_s=phase.seconds * self._misjudged,
            memory_bytes=phase.memory_bytes,
            least_bytes=phase.memory_bytes,
            tokens=phase.tokens,
            n_samples=phase.n_samples,
            context=phase.tokens // max(1, phase.n_samples),
            after=after,
        )

    def _current(self) -> Substage:
        if self.phases:
            phase = self._phase(self.phases[0], self._at, ())
            if self.fixed is None:
                return phase
            return _with_work(phase, self.fixed.left_s * self._misjudged)
        assert self.kind is not None
        if self.kind is Kind.TOOL:
            done_s = self._now() - self._since_s
            return Substage(
                key=self.key,
                run_id=self.run_id,
                worker=self.worker.worker_id,
                kind=Kind.TOOL,
                work_s=self._left_s(done_s),
                n_samples=self._samples(),
            )
        rows = [*self.engine.batch.rows, *self.engine.queue]
        wanted = sum(row.held + row.left + HEADROOM_STEPS for row in rows)
        wanted *= self._costs.kv_bytes_per_token
        return Substage(
            key=self.key,
            run_id=self.run_id,
            worker=self.worker.worker_id,
            kind=self.kind,
            work_s=self._left_s(self._worked() - self._work_0),
            memory_bytes=max(wanted, self.least_bytes),
            least_bytes=self.least_bytes,
            tokens=len(rows),
            context=self._context(),
            n_samples=len(rows),
        )

    @property
    def least_bytes(self) -> int:
        """Of cache, without which it cannot go on."""
        return self._least_tokens * self._costs.kv_bytes_per_token

    def _left_s(self, done_s: float) -> float:
        at = self._expected_at()
        if at is None:
            return max(self.engine.left_s, 1e-3) * self._misjudged
        whole_s = self._expected[at].work_s * self._misjudged
        return max(LEAST_LEFT * whole_s, whole_s - done_s, 1e-6)

    def _expected_at(self) -> int | None:
        """Which of the expected sub-stages this is: the next of its kind."""
        kinds = [stretch.kind for stretch in self._expected]
        return next((i for i in range(self._at, len(kinds)) if kinds[i] is self.kind), None)

    def _to_come(self) -> list[Stretch]:
        at = self._expected_at()
        return self._expected[at + 1 :] if at is not None else []

    def _now_kind(self) -> Kind | None:
        if self.phases:
            return self.phases[0].kind
        if not self.rolls_here:
            return None
        n = len(self.engine.batch.rows)
        if n:
            return self.engine.kind
        n = self.engine.n_waiting
        return kind_of(n) if n else Kind.TOOL

    def _close(self) -> None:
        if self.kind is None or not (self.kind.rolls_out or self.kind is Kind.TOOL):
            return
        work_s = self._worked() - self._work_0
        if self.kind is Kind.TOOL:
            work_s = self._now() - self._since_s
        self._went.append(
            Stretch(
                kind=self.kind,
                work_s=work_s,
                n_samples=self._samples_0,
                context=self._context_0,
            )
        )
        self._at += 1

    def _count(self) -> None:
        """From now on."""
        self._work_0 = self._worked()
        self._samples_0, self._context_0 = self._samples(), self._context()

    def _worked(self) -> float:
        self.worker.sync()
        return self.engine.worked_s

    def _samples(self) -> int:
        portions = (p for rollout in self.rollouts for p in rollout.portions)
        return sum(p.left for p in portions if p.engine is self.engine)

    def _context(self) -> int:
        rows = [*self.engine.batch.rows, *self.engine.queue]
        return sum(row.context for row in rows) // len(rows) if rows else 0

    def _foreseen(self) -> list[Stretch]:
        """By the cost model, without tools."""
        rows = []
        for row in self.engine.waiting():
            again = Row(row.portion, row.sample, row.context, row.shared, row.left)
            again.compute = row.compute
            rows.append(again)
        if not rows:
            return []
        batch = Batch(self._costs, exact=False)
        batch.join(rows)
        return [
            Stretch(kind=kind_of(n), work_s=work_s, n_samples=n, context=context)
            for n, work_s, context in batch.outlook()
        ]


def _with_work(substage: Substage, work_s: float) -> Substage:
    return replace(substage, work_s=max(work_s, 1e-6))
