"""Rollout: continuous batching over many adapters, one forward step at a time.

The loop is *plan → batch → forward → score and draw → note*; who takes part is ``schedule``'s
decision, what is carried out side by side ``halves``', which requests make sense ``intake``'s.
Holds no clock and no thread; not thread-safe.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from plait.adapters.peft import read_adapter
from plait.core.errors import EngineError, ModelError, NotFinite, RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SampleResult, StopReason
from plait.core.plan import Keep
from plait.engines.factory import BLOCK_SIZE
from plait.engines.moved import Moved, check
from plait.engines.protocol import ForwardStep
from plait.engines.torch import moving
from plait.engines.torch.base import open_sampler
from plait.engines.torch.batch import Batch, Batcher
from plait.engines.torch.blocks import Blocks, Policy
from plait.engines.torch.halves import LEAST_ROWS, halves
from plait.engines.torch.intake import Intake
from plait.engines.torch.kv import KV
from plait.engines.torch.lanes import LANES, Lanes, OnLayer
from plait.engines.torch.lora import LoraBatch, Pieces, pack_adapter
from plait.engines.torch.noise import draw_keys
from plait.engines.torch.packed import one_row, plain_rows
from plait.engines.torch.replays import Key
from plait.engines.torch.sampling import Draws, draw
from plait.engines.torch.schedule import Plan, Scheduler
from plait.engines.torch.scoring import score_prompts
from plait.engines.torch.sequence import Request
from plait.models.shape import read_shape
from plait.models.tokenizer import Tokenizer


@dataclass(slots=True)
class _Loaded:
    """An adapter, where it came from, and whether it goes with its last sample."""

    pieces: Pieces
    path: str
    n_alive: int = 0
    doomed: bool = False


class TorchRollout:
    """A ``RolloutEngine`` over a base model's mapped weights."""

    def __init__(
        self,
        model_dir: str | Path,
        *,
        n_blocks: int,
        block_size: int = BLOCK_SIZE,
        max_batch_tokens: int = 512,
        max_seqs: int = 64,
        prefix_cache: bool = True,
        pack_layers: bool = True,
        exact: bool = False,
        lanes: int = LANES,
        by_transformers: bool = False,
        on_layer: Callable[[], None] = lambda: None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        graphs: bool = False,
        cache: Path | None = None,
    ) -> None:
        """``graphs``: decode steps go through static buffers and, on CUDA, are recorded once, where
        the way that the model is run can be. ``by_transformers``: the reference, where our own
        forward would do as well."""
        if n_blocks < 1 or not 1 <= max_seqs <= max_batch_tokens:
            raise RequestError(
                f"a rollout engine needs n_blocks ≥ 1 and 1 ≤ max_seqs ≤ max_batch_tokens, not "
                f"{n_blocks}, {max_seqs}, {max_batch_tokens}"
            )
        self.shape = read_shape(model_dir)
        self._model = open_sampler(
            model_dir,
            dtype=dtype,
            device=device,
            cache=cache,
            exact=exact,
            pack_layers=pack_layers,
            by_transformers=by_transformers,
        )
        self._exact = exact
        # A CPU's plain product with few rows has other bits; on CUDA rows are never padded.
        on_cpu = self._model.device.type == "cpu"
        self._lone_rows = plain_rows if on_cpu and not exact else one_row
        self._intake = Intake(self.shape, Tokenizer(model_dir))
        self._blocks = Blocks(n_blocks, block_size=block_size, reuse=prefix_cache)
        self._kv = KV(
            self._model.arch,
            n_blocks,
            block_size=block_size,
            dtype=dtype,
            device=device,
            exact=exact,
        )
        self._scheduler = Scheduler(
            self._blocks, max_seqs=max_seqs, max_batch_tokens=max_batch_tokens
        )
        at_once = self._model.side_by_side and on_cpu and not exact
        self._lanes = Lanes(lanes if at_once else 1, on_layer)
        self._batchers = [
            Batcher(
                self._kv,
                device,
                least_rows=self._model.least_rows,
                exact=exact,
                share=self._model.shares,
            )
            for _ in range(self._lanes.n)
        ]
        self._requests: dict[OpId, Request] = {}
        self._adapters: dict[Policy, _Loaded] = {}
        self._n_preempted = 0
        self._graphs = self._model.graphs(self._kv) if graphs else None

    def load_adapter(self, run_id: RunId, version: int, path: str) -> None:
        """Read PEFT safetensors under ``path``; ModelError if a module does not match."""
        policy = (run_id, version)
        old = self._adapters.get(policy)
        if old is not None and old.path == path:
            old.doomed = False
            return
        if old is not None and old.n_alive:
            raise ModelError(
                f"version {version} of {run_id} is being sampled from {old.path}: versions do not "
                f"change, publish another"
            )
        model = self._model
        adapter = read_adapter(
            path, n_layers=model.arch.n_layers, paths=model.arch.paths, head_VD=model.head_VD
        )
        pieces = pack_adapter(
            adapter, model.arch, dtype=model.dtype, device=str(model.device), exact=self._exact
        )
        self._blocks.forget_policy(policy)
        self._adapters[policy] = _Loaded(pieces, path)
        if self._graphs is not None:
            self._graphs.put(policy, adapter)

    def drop_adapter(self, run_id: RunId, version: int) -> None:
        """Forget an adapter once its last sample has ended; unknown ones are ignored."""
        if (loaded := self._adapters.get((run_id, version))) is not None:
            loaded.doomed = True
            self._drop_if_unused((run_id, version))

    def add(self, op: Sample) -> None:
        """Queue a sample; RequestError on bad ids, CapacityError if it can never fit."""
        for s in self._accept(op).sequences:
            self._scheduler.add(s)

    def export_sample(self, op_id: OpId, *, kv: bool) -> Moved:
        """Take a request out, to go on elsewhere; RequestError if it is not in flight."""
        request = self._requests.get(op_id)
        if request is None:
            raise RequestError(f"sample {op_id} is not in flight here: it has ended, or never came")
        moved = moving.pack(request, self.shape, self._kv if kv else None)
        self._close(request)
        return moved

    def import_sample(self, moved: Moved) -> None:
        """Go on with another engine's request; refused as in ``add``, and with ModelError if it was
        begun on another base model."""
        check(moved, self.shape)
        moving.unpack(moved, self._accept(moved.op), self._scheduler, self._kv)

    def _accept(self, op: Sample) -> Request:
        if op.op_id in self._requests:
            raise RequestError(f"sample {op.op_id} is queued already: give each its own op_id")
        loaded = self._adapters.get((op.run_id, op.version))
        if op.version is not None and (loaded is None or loaded.doomed):
            raise RequestError(
                f"version {op.version} of {op.run_id} is not loaded: publish it before sampling"
            )
        capacity = self._kv.n_blocks * self._kv.block_size
        request = self._intake.request(op, max_tokens_cached=capacity)
        self._requests[op.op_id] = request
        if loaded is not None:
            loaded.n_alive += 1
        return request

    def abort(self, op_ids: Seq[OpId]) -> tuple[tuple[OpId, SampleResult], ...]:
        """End samples now; what they had drawn comes back with ``StopReason.ABORT``."""
        ended = []
        for op_id in op_ids:
            if (request := self._requests.get(op_id)) is not None:
                self._close(request)
                ended.append((op_id, request.result()))
        return tuple(ended)

    def peek(self, op_id: OpId) -> SampleResult | None:
        """What a sample has drawn so far; None if it is not in flight."""
        request = self._requests.get(op_id)
        return None if request is None else request.result()

    def mark_prefix(self, run_id: RunId, version: int | None, tokens: Seq[int], keep: Keep) -> None:
        """Say how soon what is cached of ``tokens`` may be given up."""
        self._blocks.mark((run_id, version), tokens, keep)

    def set_paused(self, run_id: RunId, paused: bool) -> None:
        """Keep a run's samples out of forward steps without touching the others."""
        self._scheduler.set_paused(run_id, paused)

    def resize_kv(self, n_blocks: int) -> None:
        """Change the cache's size. Samples that no longer fit are computed again later;
        CapacityError (and no change) if one of them could never be."""
        if n_blocks < 1:
            raise RequestError(f"a KV cache of {n_blocks} blocks is none: give at least 1")
        moves, n_preempted = self._scheduler.resize(n_blocks)
        self._n_preempted += n_preempted
        self._kv.resize(n_blocks, moves)
        for batcher in self._batchers:
            batcher.reset()
        if self._graphs is not None:
            self._graphs.forget()

    def has_work(self) -> bool:
        """True while a forward step would do something."""
        return self._scheduler.has_work()

    @torch.inference_mode()
    def step(self) -> ForwardStep:
        """One forward step over whatever is runnable."""
        n_evicted = self._blocks.n_evicted
        plan = self._scheduler.plan()
        key = None if self._graphs is None else self._graphs.key_of(plan)
        batches = self._build(plan, key)
        n_tokens = sum(batch.n_tokens for batch in batches)
        over: list[Request] = []
        if n_tokens:
            try:
                over = self._run(plan, batches, key)
            except RuntimeError as e:  # torch's own, out of memory included
                self._scheduler.preempt_all()
                first = str(e).strip().splitlines()[0]
                raise EngineError(
                    f"a step of {n_tokens} tokens failed ({first}); its samples are kept"
                ) from e
        return self._report(plan, batches, over, n_evicted)

    def _build(self, plan: Plan, key: Key | None) -> list[Batch]:
        """What is to be computed: a batch, or two that are carried out side by side."""
        if key is not None:
            return [self._batchers[0].build(plan, static=True)]
        parts: tuple[Plan, ...] = (plan,)
        if self._lanes.n > 1 and torch.get_num_threads() > 1:
            parts = halves(plan, max(LEAST_ROWS, self._model.least_rows()))
        for idle in self._batchers[len(parts) :]:
            idle.reset()  # it sees no block that this step gives: its next part begins anew
        return [b.build(part) for b, part in zip(self._batchers, parts, strict=False)]

    def _run(self, plan: Plan, batches: Seq[Batch], key: Key | None) -> list[Request]:
        self._kv.copy(plan.copies)
        self._kv.clear(plan.fresh)
        touched = self._replay(plan, batches[0], key) if key else self._forward(plan, batches)
        over = [r for r in dict.fromkeys(touched) if r.failure or r.is_over]
        for request in over:
            self._close(request)
        return over

    def _replay(self, plan: Plan, batch: Batch, key: Key) -> list[Request]:
        """A step of decoding rows alone; returns the requests that it may have ended."""
        logits_BV = self._graphs.logits(key, batch)
        if logits_BV is None:
            return self._forward(plan, self._build(plan, None))
        self._scheduler.advance(plan)
        return self._take(batch, self._draw(batch, logits_BV))

    def _forward(self, plan: Plan, batches: Seq[Batch]) -> list[Request]:
        """Any step; returns the requests that it may have ended."""
        works = [partial(self._compute, batch) for batch in batches]
        made = [result() for result in self._lanes.run(works)]
        self._scheduler.advance(plan)
        touched: list[Request] = []
        for batch, (sick, draws) in zip(batches, made, strict=True):
            touched += sick
            touched += [] if draws is None else self._take(batch, draws)
        return touched

    @torch.inference_mode()
    def _compute(self, batch: Batch, on_layer: OnLayer) -> tuple[list[Request], Draws | None]:
        """A batch by itself: the requests whose prompts' logits are not finite, and what is drawn.
        Touches nothing that another has a part in."""
        segments = [(s.start, s.end, self._pieces(s.policy)) for s in batch.segments]
        lora = LoraBatch(segments, lone_rows=self._lone_rows())
        h_ND = self._model.hidden(batch, self._kv, None if lora.is_empty else lora, on_layer)
        sick = score_prompts(batch.scored, lambda rows: self._head(h_ND, rows, lora))
        if not batch.draws:
            return sick, None
        return sick, self._draw(batch, self._head(h_ND, batch.draw_rows, lora))

    def _draw(self, batch: Batch, logits_RV: torch.Tensor) -> Draws:
        """The next token of every row that is due."""
        return draw(
            logits_RV,
            [s.request.op.params for s in batch.draws],
            draw_keys([s.stream for s in batch.draws], [s.n_drawn for s in batch.draws]),
            [s.request.op.topk_logprobs for s in batch.draws],
            apart=self._exact,
        )

    def _take(self, batch: Batch, found: Draws) -> list[Request]:
        """Give each sample its token; returns the requests that this may have ended."""
        touched: list[Request] = []
        drawn = zip(found.tokens_R, found.logprobs_R, found.topk_R, strict=True)
        for s, one, ok in zip(batch.draws, drawn, found.ok_R, strict=True):
            if not ok:
                s.request.failure = (
                    f"sample {s.index} of run {s.policy[0]}, version {s.policy[1]}: logits are not "
                    f"finite after {s.n_drawn} tokens; lower the learning rate or go back a version"
                )
                touched.append(s.request)
                continue
            s.draw(*one)
            if s.reason is not None:
                self._scheduler.remove(s)
                touched.append(s.request)
        return touched

    def _head(self, h_ND: torch.Tensor, rows: list[int], lora: LoraBatch) -> torch.Tensor:
        """Logits of ``rows``, which rise: each is computed once, though several samples may draw
        from it."""
        distinct = list(dict.fromkeys(rows))
        padded = distinct + [distinct[0]] * (self._model.least_rows() - len(distinct))
        if padded != list(range(h_ND.shape[0])):
            h_ND = h_ND[torch.tensor(padded, device=h_ND.device)]
        logits = self._model.logits(h_ND, lora.at(distinct))
        if distinct == rows:
            return logits[: len(rows)]
        place = {row: i for i, row in enumerate(distinct)}
        return logits[torch.tensor([place[r] for r in rows], device=logits.device)]

    def _report(
        self, plan: Plan, batches: Seq[Batch], over: list[Request], n_evicted: int
    ) -> ForwardStep:
        """``n_evicted``: before the step."""
        by_run: Counter[RunId] = Counter()
        for batch in batches:
            for segment in batch.segments:
                by_run[segment.policy[0]] += min(segment.end, batch.n_tokens) - segment.start
        n_preempted, self._n_preempted = plan.n_preempted + self._n_preempted, 0
        return ForwardStep(
            n_tokens=sum(batch.n_tokens for batch in batches),
            n_prefill_tokens=sum(c.n for c in plan.chunks),
            n_running=len(self._scheduler.running),
            n_waiting=len(self._scheduler.waiting),
            n_preempted=n_preempted,
            kv_blocks_used=self._blocks.n_held,
            tokens_by_run=dict(by_run),
            kv_blocks_by_run={k: v for k, v in self._blocks.by_run.items() if v},
            finished=tuple((r.op.op_id, r.result()) for r in over if not r.failure),
            failed=tuple((r.op.op_id, NotFinite(r.failure)) for r in over if r.failure),
            short_of_blocks=frozenset(plan.short_of_blocks),
            kv_blocks_idle=self._blocks.n_idle,
            n_evicted=self._blocks.n_evicted - n_evicted,
        )

    def _pieces(self, policy: Policy) -> Pieces | None:
        return None if policy[1] is None else self._adapters[policy].pieces

    def _close(self, request: Request) -> None:
        """Take a request out: its sequences give back what they hold, its adapter may go."""
        del self._requests[request.op.op_id]
        for s in request.sequences:
            if s.reason is None:
                self._scheduler.remove(s)
                s.reason = StopReason.ABORT
        self._intake.leave(request)
        if (loaded := self._adapters.get(request.policy)) is not None:
            loaded.n_alive -= 1
            self._drop_if_unused(request.policy)

    def _drop_if_unused(self, policy: Policy) -> None:
        loaded = self._adapters[policy]
        if loaded.doomed and not loaded.n_alive:
            del self._adapters[policy]
            self._blocks.forget_policy(policy)
            if self._graphs is not None:
                self._graphs.drop(policy)
