"""ScriptedRollout: a ``RolloutEngine`` whose policy is a toy and whose scheduling is real.

Invariants: a sample's tokens depend on its adapter, prompt, seed and index alone, never on what
else is in the batch; a group keeps the adapter it began with; every request that was accepted ends.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep as real_sleep

from plait.core.errors import RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SampleResult, StopReason
from plait.core.plan import Keep
from plait.engines.moved import Moved, MovedSample, check
from plait.engines.protocol import ForwardStep, ModelShape
from plait.engines.scripted import checks, draw, files, policy, scoring, sequences
from plait.engines.scripted.policy import Adapter
from plait.engines.scripted.scheduler import Scheduler


def decode_bytes(ids: Sequence[int]) -> str:
    """Text of byte-level ids; ids above 255 are special and have none."""
    return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


class ScriptedRollout:
    """Continuous batching over the toy policy."""

    def __init__(
        self,
        shape: ModelShape,
        n_blocks: int,
        block_size: int,
        max_batch_tokens: int,
        max_seqs: int,
        *,
        sleep: Callable[[float], None] = real_sleep,
        token_s: float = 0.0,
        step_s: float = 0.0,
        decode: Callable[[Sequence[int]], str] = decode_bytes,
    ) -> None:
        """Each forward step sleeps ``step_s + n_tokens · token_s``; 0 does not sleep at all."""
        self.shape = shape
        self._block_size = block_size
        self._scheduler = Scheduler(
            n_blocks=n_blocks,
            block_size=block_size,
            max_batch_tokens=max_batch_tokens,
            max_seqs=max_seqs,
        )
        self._sleep = sleep
        self._token_s = token_s
        self._step_s = step_s
        self._decode = decode
        self._adapters: dict[tuple[RunId, int], Adapter] = {}
        self._groups: dict[OpId, sequences.Group] = {}
        self._n_preempted = 0

    def load_adapter(self, run_id: RunId, version: int, path: str) -> None:
        """Read the adapter under ``path``; samples in flight keep the one they began with."""
        self._adapters[run_id, version] = files.read_adapter(Path(path))[0]

    def drop_adapter(self, run_id: RunId, version: int) -> None:
        """Forget an adapter; groups in flight hold their own reference to it."""
        self._adapters.pop((run_id, version), None)

    def add(self, op: Sample) -> None:
        """Queue a sample; RequestError on bad arguments, CapacityError if it can never fit."""
        self._queue(self._group(op))

    def export_sample(self, op_id: OpId, *, kv: bool) -> Moved:
        """Take a request out; there is no cache to copy."""
        group = self._groups.pop(op_id, None)
        if group is None:
            raise RequestError(f"sample {op_id} is not in flight here: it has ended, or never came")
        for sequence in group.sequences:
            self._scheduler.remove(sequence)
        samples = tuple(
            MovedSample(
                tokens=tuple(sequence.tokens),
                logprobs=tuple(sequence.logprobs),
                topk=tuple(sequence.topk),
                stop_reason=sequence.stop_reason,
            )
            for sequence in group.sequences
        )
        return Moved(
            op=group.op,
            shape=self.shape,
            samples=samples,
            prompt_logprobs=group.prompt_logprobs,
            prompt_topk=group.prompt_topk,
            prompt_targets=group.prompt_targets,
            prompt_draws=group.prompt_draws,
            n_scored=group.n_scored,
        )

    def import_sample(self, moved: Moved) -> None:
        """Go on with another engine's request; its keys and values count as computed again."""
        check(moved, self.shape)
        group = self._group(moved.op)
        group.prompt_logprobs, group.prompt_topk = moved.prompt_logprobs, moved.prompt_topk
        group.prompt_targets, group.prompt_draws = moved.prompt_targets, moved.prompt_draws
        group.n_scored = moved.n_scored
        for sequence, m in zip(group.sequences, moved.samples, strict=True):
            sequence.tokens, sequence.logprobs = list(m.tokens), list(m.logprobs)
            sequence.topk, sequence.stop_reason = list(m.topk), m.stop_reason
        self._queue(group)

    def _group(self, op: Sample) -> sequences.Group:
        checks.sample(op, self.shape)
        if op.op_id in self._groups:
            raise RequestError(f"sample {op.op_id} is in flight already: use a new operation id")
        adapter = None
        if op.version is not None:
            adapter = self._adapters.get((op.run_id, op.version))
            if adapter is None:
                raise RequestError(
                    f"version {op.version} of {op.run_id} is not loaded: publish it before sampling"
                )
        group = sequences.Group(
            op=op,
            adapter=adapter,
            block_size=self._block_size,
            max_new=min(op.params.max_tokens, self.shape.max_context - len(op.prompt)),
        )
        group.sequences = [
            sequences.Sequence(group=group, index=op.first_index + offset) for offset in range(op.n)
        ]
        return group

    def _queue(self, group: sequences.Group) -> None:
        self._scheduler.add(group)
        self._groups[group.op.op_id] = group

    def abort(self, op_ids: Sequence[OpId]) -> tuple[tuple[OpId, SampleResult], ...]:
        """End samples now; ids that are not in flight are ignored."""
        ended = []
        for op_id in op_ids:
            group = self._groups.pop(op_id, None)
            if group is None:
                continue
            for sequence in group.sequences:
                self._scheduler.remove(sequence)
            ended.append((op_id, group.result()))
        return tuple(ended)

    def peek(self, op_id: OpId) -> SampleResult | None:
        """What a sample has drawn so far; None if it is not in flight."""
        group = self._groups.get(op_id)
        return None if group is None else group.result()

    def mark_prefix(
        self, run_id: RunId, version: int | None, tokens: Sequence[int], keep: Keep
    ) -> None:
        """Nothing is cached beyond a request's end."""

    def set_paused(self, run_id: RunId, paused: bool) -> None:
        """Keep a run's samples out of forward steps without touching the others."""
        self._scheduler.set_paused(run_id, paused)

    def resize_kv(self, n_blocks: int) -> None:
        """Change the cache's size; CapacityError, and no change, if a sample could never fit."""
        self._n_preempted += self._scheduler.resize(n_blocks)

    def has_work(self) -> bool:
        """True while a forward step would do something."""
        return self._scheduler.has_work()

    def step(self) -> ForwardStep:
        """One forward step. Blocks are those held during it, before ended samples leave."""
        batch = self._scheduler.schedule()
        by_run: dict[RunId, int] = {}
        for sequence, n_tokens in batch.tokens.items():
            run_id = sequence.group.op.run_id
            by_run[run_id] = by_run.get(run_id, 0) + n_tokens
        used, held = self._scheduler.blocks.used, self._scheduler.blocks_by_run()
        finished = []
        for sequence in batch.tokens:
            if sequence.pending == 0 and (done := self._advance(sequence)) is not None:
                finished.append(done)
        n_tokens = sum(by_run.values())
        if n_tokens and (cost_s := self._step_s + self._token_s * n_tokens):
            self._sleep(cost_s)
        n_preempted, self._n_preempted = batch.n_preempted + self._n_preempted, 0
        return ForwardStep(
            n_tokens=n_tokens,
            n_prefill_tokens=batch.n_prefill,
            n_running=len(batch.tokens),
            n_waiting=self._scheduler.n_waiting,
            n_preempted=n_preempted,
            kv_blocks_used=used,
            tokens_by_run=by_run,
            kv_blocks_by_run=held,
            finished=tuple(finished),
            short_of_blocks=frozenset(batch.short_of_blocks),
        )

    def _advance(self, sequence: sequences.Sequence) -> tuple[OpId, SampleResult] | None:
        """Draw the next token; the group's result if that ended it."""
        group, params = sequence.group, sequence.group.op.params
        logits_V = policy.logits(self.shape.vocab_size, sequence.last_token, group.adapter)
        u = draw.uniform(params.seed, sequence.index, len(sequence.tokens))
        token = draw.choose(logits_V, params, u)
        logprobs_V = policy.log_softmax(logits_V)
        sequence.tokens.append(token)
        sequence.logprobs.append(float(logprobs_V[token]))
        if group.op.topk_logprobs:
            sequence.topk.append(policy.likeliest(logprobs_V, group.op.topk_logprobs))
        if not group.n_scored:
            scoring.score_prompt(group, self.shape.vocab_size)
        sequence.stop_reason = self._stop_reason(sequence)
        if sequence.stop_reason is None:
            return None
        self._scheduler.remove(sequence)
        if not group.done:
            return None
        del self._groups[group.op.op_id]
        return group.op.op_id, group.result()

    def _stop_reason(self, sequence: sequences.Sequence) -> StopReason | None:
        params = sequence.group.op.params
        if sequence.tokens[-1] in params.stop_tokens:
            return StopReason.STOP
        if params.stop:
            text = self._decode(sequence.tokens)
            if any(stop in text for stop in params.stop):
                return StopReason.STOP
        if len(sequence.tokens) >= sequence.group.max_new:
            return StopReason.LENGTH
        return None
