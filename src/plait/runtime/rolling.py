"""Rolling: the forward steps of a worker's rollout engine, and who pays when one fails.

A step that fails (out of memory, mostly) names no culprit. The engine keeps its samples, so they
are tried again run by run; the samples of a run that fails by itself end with the reason, and
nobody else's do. Which samples a run has here is known here.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from plait.core.errors import PlaitError
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, Sampled, SampleResult
from plait.engines.moved import Moved
from plait.engines.protocol import ForwardStep, RolloutEngine
from plait.runtime import messages as m


class Rolling:
    """A rollout engine and the samples that it has."""

    def __init__(self, engine: RolloutEngine) -> None:
        self.engine = engine
        self._run_of: dict[OpId, RunId] = {}
        self._paused: set[RunId] = set()
        self._watched: dict[OpId, list[int]] = {}
        """Samples whose tokens are told as they come: how many are, of each continuation."""

    def add(self, op: Sample) -> None:
        """Queue a sample; raises what the engine raises."""
        self.engine.add(op)
        self._enter(op)

    def _enter(self, op: Sample) -> None:
        self._run_of[op.op_id] = op.run_id
        if op.watched:
            self._watched[op.op_id] = [0] * op.n

    def drawn(self) -> list[m.Drawn]:
        """What watched samples have drawn since this was last asked."""
        news = []
        for op_id, told in list(self._watched.items()):
            result = self.engine.peek(op_id)
            if result is None:  # it has ended: the end itself says all
                del self._watched[op_id]
            elif any(len(s.tokens) > n for s, n in zip(result.samples, told, strict=True)):
                samples = tuple(_since(s, n) for s, n in zip(result.samples, told, strict=True))
                news.append(m.Drawn(op_id=op_id, first=tuple(told), samples=samples))
                self._watched[op_id] = [len(s.tokens) for s in result.samples]
        return news

    def export(self, op_id: OpId, *, kv: bool) -> Moved | None:
        """Take a sample out, to go on elsewhere; ``None`` if it has ended."""
        if op_id not in self._run_of:
            return None
        moved = self.engine.export_sample(op_id, kv=kv)
        del self._run_of[op_id]
        return moved

    def take(self, moved: Moved) -> None:
        """Go on with a sample; raises what the engine raises."""
        self.engine.import_sample(moved)
        self._enter(moved.op)

    def abort(self, op_ids: Sequence[OpId]) -> tuple[tuple[OpId, SampleResult], ...]:
        """End samples now."""
        for op_id in op_ids:
            self._run_of.pop(op_id, None)
        return self.engine.abort(op_ids)

    def set_paused(self, run_id: RunId, paused: bool) -> None:
        """Keep a run's samples out of forward steps."""
        (self._paused.add if paused else self._paused.discard)(run_id)
        self.engine.set_paused(run_id, paused)

    def has_work(self) -> bool:
        return self.engine.has_work()

    def step(self) -> tuple[ForwardStep, bool]:
        """One forward step, and whether it ended the last sample of some run."""
        try:
            step = self.engine.step()
        except PlaitError as error:
            step = self._step_by_run(error)
        ended = [op_id for op_id, _ in (*step.finished, *step.failed)]
        if not ended:
            return step, False
        runs = {self._run_of.pop(op_id) for op_id in ended}
        return step, not runs <= set(self._run_of.values())

    def _step_by_run(self, error: PlaitError) -> ForwardStep:
        """What failed together, one run at a time; raises ``error`` if that is nobody's."""
        runs = list(dict.fromkeys(r for r in self._run_of.values() if r not in self._paused))
        steps, failed = [], []
        for run_id in runs:
            self.engine.set_paused(run_id, True)
        for run_id in runs:
            self.engine.set_paused(run_id, False)
            try:
                if self.engine.has_work():
                    steps.append(self.engine.step())
            except PlaitError as alone:
                mine = [op_id for op_id, r in self._run_of.items() if r == run_id]
                self.engine.abort(mine)
                failed += [(op_id, alone) for op_id in mine]
            self.engine.set_paused(run_id, True)
        for run_id in runs:
            self.engine.set_paused(run_id, False)
        if not runs:
            raise error
        return _together(steps, tuple(failed))


def _since(sample: Sampled, n: int) -> Sampled:
    return replace(
        sample, tokens=sample.tokens[n:], logprobs=sample.logprobs[n:], topk=sample.topk[n:]
    )


def _together(steps: list[ForwardStep], failed: tuple[tuple[OpId, PlaitError], ...]) -> ForwardStep:
    """Steps of one run each, accounted as one."""
    if not steps:
        return ForwardStep(
            n_tokens=0,
            n_prefill_tokens=0,
            n_running=0,
            n_waiting=0,
            n_preempted=0,
            kv_blocks_used=0,
            tokens_by_run={},
            kv_blocks_by_run={},
            finished=(),
            failed=failed,
        )
    tokens: Counter[RunId] = Counter()
    for step in steps:
        tokens.update(step.tokens_by_run)
    return replace(
        steps[-1],
        n_tokens=sum(s.n_tokens for s in steps),
        n_prefill_tokens=sum(s.n_prefill_tokens for s in steps),
        n_preempted=sum(s.n_preempted for s in steps),
        n_evicted=sum(s.n_evicted for s in steps),
        tokens_by_run=dict(tokens),
        short_of_blocks=frozenset[RunId]().union(*(s.short_of_blocks for s in steps)),
        finished=tuple(f for s in steps for f in s.finished),
        failed=(*(f for s in steps for f in s.failed), *failed),
    )
