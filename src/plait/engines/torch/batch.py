"""Batch: a plan turned into the tensors of one forward step.

Rows are in the order: decoding samples (by adapter), prefill chunks (by adapter, the last decoding
adapter first so that its segment goes on), padding. What stays the same from step to step (order
and block table of the decoding samples) is kept and brought up to date.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from plait.engines.torch.blocks import Policy
from plait.engines.torch.exact import VECTOR
from plait.engines.torch.kv import KV
from plait.engines.torch.parts import Part, make_parts
from plait.engines.torch.schedule import Chunk, Plan
from plait.engines.torch.sequence import Request, Sequence
from plait.engines.torch.views import ChunkView, DecodeView, SharedView


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows ``start:end`` that belong to one policy."""

    policy: Policy
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """``rows`` of a request's prompt that are due; row i is row ``at`` + i of the batch."""

    request: Request
    at: int
    rows: range


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step's input. ``draw_rows``: row whose logits ``draws[i]`` takes its next token from.

    Where ``table_BN`` (blocks of the decoding rows) is given, the step is for static buffers: its
    tensors are the host's, and there are no views and no padding.
    """

    tokens_N: torch.Tensor
    positions_N: torch.Tensor
    slots_N: torch.Tensor
    n_decode: int
    decodes: tuple[DecodeView, ...]
    chunks: tuple[ChunkView, ...]
    segments: tuple[Segment, ...]
    draws: list[Sequence]
    draw_rows: list[int]
    scored: tuple[Scored, ...]
    n_tokens: int
    table_BN: np.ndarray | None = None


class Batcher:
    """Builds batches for one cache."""

    def __init__(
        self,
        kv: KV,
        device: str,
        *,
        least_rows: Callable[[], int],
        exact: bool = False,
        share: bool = True,
    ) -> None:
        """Without ``share`` every row has all its blocks in one table."""
        self._kv = kv
        self._device = device
        self._least_rows = least_rows
        self._exact, self._share = exact, share and not exact
        # Blocks to a whole vector of keys, where the count matters.
        self._unit = VECTOR // math.gcd(VECTOR, kv.block_size) if exact else 1
        self._sequences: list[Sequence] = []
        self._planned: list[Sequence] = []
        self._table = np.zeros((0, 0), dtype=np.int64)
        self._row: dict[Sequence, int] = {}
        self._parts: list[Part] | None = None

    def reset(self) -> None:
        """Forget what is kept between steps (the cache's blocks have moved)."""
        self._sequences, self._planned, self._parts = [], [], None

    def build(self, plan: Plan, *, static: bool = False) -> Batch:
        """The batch of a step; ``static``: one of decoding rows alone, for static buffers."""
        size = self._kv.block_size
        sequences = self._decoding(plan)
        n_decode = len(sequences)
        last = sequences[-1].policy if sequences else None
        chunks = sorted(
            plan.chunks, key=lambda c: (c.sequence.policy != last, order(c.sequence.policy))
        )
        tokens = [s.tokens[-1] for s in sequences]
        positions = np.fromiter((s.n_cached for s in sequences), np.int64, n_decode)
        slots = self._table[np.arange(n_decode), positions // size] * size + positions % size
        decodes = () if static else self._decode_views(positions + 1)
        views, at = [], n_decode
        more_positions, more_slots = [positions], [slots]
        for c in chunks:
            tokens += c.sequence.tokens[c.start : c.start + c.n]
            where = np.arange(c.start, c.start + c.n)
            blocks = np.asarray(c.sequence.blocks, dtype=np.int64)
            more_positions.append(where)
            more_slots.append(blocks[where // size] * size + where % size)
            views.append(self._chunk_view(c, at, blocks))
            at += c.n
        n_tokens = len(tokens)
        pad = 0 if static else max(0, self._least_rows() - n_tokens)
        draws, draw_rows = list(sequences), list(range(n_decode))
        for c, view in zip(chunks, views, strict=True):
            if c.draws:
                together = [c.sequence, *plan.forks.get(c.sequence, ())]
                draws += together
                draw_rows += [view.end - 1] * len(together)
        more_positions.append(np.zeros(pad, dtype=np.int64))
        put = torch.from_numpy if static else self._to
        return Batch(
            tokens_N=put(np.array(tokens + [0] * pad, dtype=np.int64)),
            positions_N=put(np.concatenate(more_positions)),
            slots_N=put(np.concatenate(more_slots)),
            n_decode=n_decode,
            decodes=decodes,
            chunks=tuple(views),
            segments=_segments(sequences, chunks, pad),
            draws=draws,
            draw_rows=draw_rows,
            scored=_scored(chunks, views),
            n_tokens=n_tokens,
            table_BN=self._table if static else None,
        )

    def _decoding(self, plan: Plan) -> list[Sequence]:
        """The decoding sequences in row order, with the block table up to date."""
        if plan.decodes != self._planned:
            self._planned = list(plan.decodes)
            self._sequences = sorted(plan.decodes, key=lambda s: order(s.policy))
            self._row = {s: i for i, s in enumerate(self._sequences)}
            self._table = np.full((len(self._sequences), 1), self._kv.null_block, dtype=np.int64)
            changed = self._sequences
        else:
            changed = [s for s in plan.grown if s in self._row]
        for s in changed:
            self._fill(self._row[s], s.blocks)
        if changed or not self._sequences:
            self._parts = None
        return self._sequences

    def _decode_views(self, n_tokens_N: np.ndarray) -> tuple[DecodeView, ...]:
        if self._parts is None:
            n_blocks = np.array([len(s.blocks) for s in self._sequences], dtype=np.int64)
            groups = [s.group for s in self._sequences]
            self._parts = self._divide(n_blocks, groups) if self._sequences else []
        return tuple(self._decode_view(part, n_tokens_N) for part in self._parts)

    def _divide(self, n_blocks_B: np.ndarray, groups: list[int]) -> list[Part]:
        return make_parts(
            self._table,
            n_blocks_B,
            groups,
            null_block=self._kv.null_block,
            block_bytes=self._kv.block_bytes,
            share=self._share,
        )

    def _fill(self, row: int, blocks: list[int]) -> None:
        missing = len(blocks) - self._table.shape[1]
        if missing > 0:
            self._table = np.pad(
                self._table, ((0, 0), (0, missing)), constant_values=self._kv.null_block
            )
        self._table[row, : len(blocks)] = blocks

    def _decode_view(self, part: Part, n_tokens_N: np.ndarray) -> DecodeView:
        n, size = len(part.rows), self._kv.block_size
        own = n_tokens_N[part.rows] - part.n_shared_B * size
        table_BN = self._whole(part.table_BN)
        return DecodeView(
            rows_B=None if n == len(n_tokens_N) and _in_order(part.rows) else self._to(part.rows),
            blocks=self._to(table_BN.reshape(-1)),
            n=n,
            mask_B1T=self._mask(own, table_BN.shape[1] * size),
            shared=None if part.shared is None else self._shared_view(part),
        )

    def _shared_view(self, part: Part) -> SharedView:
        shared, size = part.shared, self._kv.block_size
        n_clusters, n_blocks = shared.table_CS.shape
        members = shared.members_CM.reshape(-1)
        even = len(members) == len(part.rows) and _in_order(members)
        return SharedView(
            blocks=self._to(shared.table_CS.reshape(-1)),
            n_clusters=n_clusters,
            members=None if even else self._to(members),
            place_B=None if even else self._to(shared.place_B),
            mask_C1S=self._mask(shared.n_blocks_C * size, n_blocks * size),
        )

    def _mask(self, n_tokens_B: np.ndarray, width: int) -> torch.Tensor:
        """``[K · B, 1, width]``: minus infinity from ``n_tokens_B`` on."""
        beyond = np.arange(width) >= n_tokens_B[:, None]
        mask = np.where(beyond, np.float32("-inf"), np.float32(0))[:, None, :]
        return self._to(np.tile(mask, (self._kv.n_heads, 1, 1))).to(self._kv.dtype)

    def _chunk_view(self, c: Chunk, at: int, blocks: np.ndarray) -> ChunkView:
        n_tokens = c.start + c.n
        mask = None
        if c.start and not self._exact:
            query, key = np.arange(c.start, n_tokens)[:, None], np.arange(n_tokens)[None, :]
            mask = self._to(key <= query)
        n_blocks = -(-n_tokens // self._kv.block_size)
        return ChunkView(
            start=at,
            end=at + c.n,
            blocks=self._to(self._whole(blocks[None, :n_blocks])[0]),
            n_tokens=n_tokens,
            mask_NT=mask,
        )

    def _whole(self, table_BN: np.ndarray) -> np.ndarray:
        """A table whose rows are whole units of blocks."""
        missing = -table_BN.shape[1] % self._unit
        return np.pad(table_BN, ((0, 0), (0, missing)), constant_values=self._kv.null_block)

    def _to(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attend(kv: KV, batch: Batch) -> Attend:
    """Attention for ``model.forward``: write the step's keys and values, then look back."""
    whole = len(batch.decodes) == 1 and batch.decodes[0].rows_B is None and not batch.chunks

    def run(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        kv.write(i, batch.slots_N, k, v)
        if whole and batch.n_decode == q.shape[0]:
            return kv.decode(i, q, batch.decodes[0])
        out = q.new_zeros(q.shape)
        for view in batch.decodes:
            found = kv.decode(i, q, view)
            if view.rows_B is None:
                out[: view.n] = found
            else:
                out.index_copy_(0, view.rows_B, found)
        for view in batch.chunks:
            out[view.start : view.end] = kv.chunk(i, q, view)
        return out

    return run


def _scored(chunks: list[Chunk], views: list[ChunkView]) -> tuple[Scored, ...]:
    """What the chunks of scoring sequences have that is not scored yet."""
    out = []
    for c, view in zip(chunks, views, strict=True):
        request = c.sequence.request
        first, end = max(c.start, request.prompt.n_scored), c.start + c.n
        rows = range(first, min(end, request.prompt.end))
        if c.sequence.scores and rows:
            out.append(Scored(request=request, at=view.start - c.start, rows=rows))
    return tuple(out)


def _segments(sequences: list[Sequence], chunks: list[Chunk], pad: int) -> tuple[Segment, ...]:
    """The padding belongs to the last segment, so that a lone adapter's rows are never few."""
    out: list[Segment] = []
    at = 0
    for policy, n in [(s.policy, 1) for s in sequences] + [
        (c.sequence.policy, c.n) for c in chunks
    ]:
        if out and out[-1].policy == policy:
            out[-1] = Segment(policy=policy, start=out[-1].start, end=at + n)
        else:
            out.append(Segment(policy=policy, start=at, end=at + n))
        at += n
    if out:
        out[-1] = Segment(policy=out[-1].policy, start=out[-1].start, end=at + pad)
    return tuple(out)


def _in_order(index: np.ndarray) -> bool:
    return bool((index == np.arange(len(index))).all())


def order(policy: Policy) -> tuple[str, int]:
    """Policies in the order of a step's rows."""
    run_id, version = policy
    return run_id, -1 if version is None else version
