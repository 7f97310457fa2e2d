"""Batch: one micro-batch of one or several runs' data, as tensors.

Shapes: N packed tokens, B sequences, T the longest of them; R rows of C queries (``rows``); M
targets of scored positions, as the sequences have them: one each, or K where targets are soft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from plait.engines.torch.custom.own import Own
from plait.engines.torch.train.checked import Checked
from plait.engines.torch.train.prefix import families
from plait.engines.torch.train.rows import Row, query_rows, whole_rows
from plait.engines.torch.train.scored import Scored, each_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What one run has in a micro-batch."""

    tokens: slice
    """Its packed tokens."""
    counts: tuple[int, ...]
    """Targets of each of its sequences."""
    inputs_M: dict[str, torch.Tensor]
    """Loss inputs of its targets alone."""
    own: tuple[Own | None, ...] = ()
    """What a client's own loss reads of each of its sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """One micro-batch. Attention reads keys from a padded ``(R, T)`` grid and queries from an
    ``(R, C)`` one: a sequence is a row of both, unless sequences of a run share a prefix.

    Then the prefix is packed once, in its first sequence; ``rows`` cuts each sequence's own queries
    into rows; ``sources_P`` names the packed token of each of the ``P = R·T`` places of keys, and
    ``queries_Q`` that of each of the ``Q = R·C`` places of queries. Else the two are ``None``."""

    tokens_N: torch.Tensor
    positions_N: torch.Tensor
    slots_N: torch.Tensor | None
    """The place of each packed token among the queries; ``None`` where nothing is padded and the
    grid is the packed order itself."""
    sources_P: torch.Tensor | None
    queries_Q: torch.Tensor | None
    places_RC: torch.Tensor | None
    """Each query's position in its sequence, 0 where there is padding."""
    n_rows: int
    longest: int
    width: int
    scored: tuple[Scored, ...]
    """What of it is scored, each position once."""
    places_M: torch.Tensor | None
    """The place of each target's log-prob among those of ``scored``; ``None``: in that order."""
    stretches: tuple[Stretch, ...]
    """One per run, in order; together they are the batch."""


def pack(runs: Sequence[Sequence[Checked]], device: torch.device, *, unit: int = 1) -> Packed:
    """One micro-batch of each run's sequences, which have a scored position each. The grid is a
    multiple of ``unit`` places wide."""
    data = [d for run in runs for d in run]
    lengths = [d.length for d in data]
    longest = -(-max(lengths) // unit) * unit
    tokens, positions, own, sources, ends = _place(runs, longest)
    shared = len(tokens) < sum(lengths)
    rows, width = query_rows(own) if shared else (whole_rows(lengths), longest)
    grid = _queries(rows, width, sources)

    def give(array: np.ndarray, wanted: bool = True) -> torch.Tensor | None:
        return torch.from_numpy(array).to(device) if wanted else None

    scored, places_M = each_once(
        np.concatenate([sources[i, d.scored].repeat(d.n_targets) for i, d in enumerate(data)]),
        np.concatenate([d.targets[d.scored].reshape(-1) for d in data]),
        np.concatenate([d.moves.reshape(-1) for d in data]),
        ends,
        device,
    )

    def join(arrays: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(arrays)).to(device)

    stretches: list[Stretch] = []
    start = 0
    for run, end in zip(runs, ends, strict=True):
        stretches.append(
            Stretch(
                tokens=slice(start, end),
                counts=tuple(len(d.scored) * d.n_targets for d in run),
                inputs_M={
                    name: join([d.inputs[name].reshape(-1) for d in run]) for name in run[0].inputs
                },
                own=tuple(d.own for d in run),
            )
        )
        start = end
    return Packed(
        tokens_N=give(tokens),
        positions_N=give(positions),
        slots_N=give(grid.slots_N, shared or min(lengths) != longest),
        sources_P=give(sources[grid.sequence_R].reshape(-1), shared),
        queries_Q=give(grid.tokens_RC.reshape(-1), shared),
        places_RC=give(grid.places_RC, shared),
        n_rows=len(grid.sequence_R),
        longest=longest,
        width=grid.tokens_RC.shape[1],
        scored=scored,
        places_M=places_M,
        stretches=tuple(stretches),
    )


def _place(
    runs: Sequence[Sequence[Checked]], longest: int
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]], np.ndarray, list[int]]:
    """Packed tokens and their positions; the positions ``start:end`` that each sequence has of its
    own; the packed token of each position ``(B, T)``, where there is padding, which nothing reads,
    the run's first one (it may be no number, and must not get into another run's sums); where each
    run's tokens end."""
    data = [d for run in runs for d in run]
    sources = np.empty((len(data), longest), dtype=np.int64)
    tokens: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    own = [(0, 0)] * len(data)
    n_tokens = 0

    def place(i: int, start: int) -> None:
        """Pack what sequence ``i`` has from position ``start`` on."""
        nonlocal n_tokens
        at = np.arange(start, data[i].length)
        tokens.append(data[i].tokens[start:])
        positions.append(at)
        own[i] = (start, data[i].length)
        sources[i, start : data[i].length] = n_tokens + np.arange(len(at))
        n_tokens += len(at)

    ends: list[int] = []
    before = 0
    for run in runs:
        sources[before : before + len(run)] = n_tokens
        for family in sorted(families([d.tokens for d in run]), key=lambda f: min(f.members)):
            first, *others = (before + i for i in sorted(family.members))
            place(first, 0)
            for i in others:
                sources[i, : family.shared] = sources[first, : family.shared]
                place(i, family.shared)
        before += len(run)
        ends.append(n_tokens)
    return np.concatenate(tokens), np.concatenate(positions), own, sources, ends


@dataclass(frozen=True, slots=True)
class _Queries:
    """The grid of queries: whose keys a row reads, its packed tokens and their positions, and where
    each packed token is."""

    sequence_R: np.ndarray
    tokens_RC: np.ndarray
    places_RC: np.ndarray
    slots_N: np.ndarray


def _queries(rows: Sequence[Row], width: int, sources_BT: np.ndarray) -> _Queries:
    sequence_R = np.array([r.sequence for r in rows])
    places_RC = np.zeros((len(rows), width), dtype=np.int64)
    is_own_RC = np.zeros((len(rows), width), dtype=bool)
    for i, r in enumerate(rows):
        places_RC[i, : r.end - r.start] = np.arange(r.start, r.end)
        is_own_RC[i, : r.end - r.start] = True
    tokens_RC = sources_BT[sequence_R[:, None], places_RC]
    slots_N = np.empty(int(is_own_RC.sum()), dtype=np.int64)
    slots_N[tokens_RC[is_own_RC]] = np.flatnonzero(is_own_RC)
    return _Queries(sequence_R, tokens_RC, places_RC, slots_N)
