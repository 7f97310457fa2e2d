"""Batch: training data checked and turned into tensors.

``check`` refuses what the model cannot take, naming the datum; ``pack`` makes one micro-batch of
one or several runs' data. Tokens after a sequence's last scored position influence nothing that is
asked for and are left out.

Shapes: N packed tokens, B sequences, T the longest of them; R rows of C queries (``rows``); S
scored positions and the M targets that they have: one each, or K where targets are soft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from plait.core.errors import RequestError
from plait.core.losses import INPUTS, Choice
from plait.core.operations import Datum
from plait.engines.torch.arch import Arch
from plait.engines.torch.train.prefix import families
from plait.engines.torch.train.rows import Row, query_rows, whole_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One datum, cut after its last scored position. ``inputs`` are at scored positions only."""

    tokens: np.ndarray
    targets: np.ndarray
    """``(length,)``, or ``(length, K)``."""
    scored: np.ndarray
    """Indices of scored positions, rising."""
    inputs: dict[str, np.ndarray]
    """Of the same shape as the targets of scored positions."""

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def n_targets(self) -> int:
        """Targets of each position."""
        return 1 if self.targets.ndim == 1 else self.targets.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What one run has in a micro-batch."""

    tokens: slice
    """Its packed tokens."""
    scored: slice
    """Its scored positions among the batch's."""
    counts: tuple[int, ...]
    """Targets of each of its sequences."""
    inputs_M: dict[str, torch.Tensor]
    """Loss inputs of its targets alone."""


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
    rows_S: torch.Tensor
    targets_M: torch.Tensor
    of_M: torch.Tensor | None
    """Which of the S positions each target is of, rising; ``None`` where each has one."""
    stretches: tuple[Stretch, ...]
    """One per run, in order; together they are the batch."""


def check(data: Sequence[Datum], arch: Arch, loss: Choice | None) -> list[Checked]:
    """Check every datum; RequestError names the first that is wrong and what would be right.

    Every datum must bring the inputs that the loss needs, and all of them the same. ``None``: they
    are only scored.
    """
    if not data:
        raise RequestError("the batch is empty: give at least one datum")
    needed = () if loss is None else loss.needed
    expected = {**dict.fromkeys(needed), **data[0].inputs}
    checked = [_check(i, datum, arch, loss, tuple(expected)) for i, datum in enumerate(data)]
    if not any(len(c.scored) for c in checked):
        raise RequestError("no position is scored: set the mask of at least one position")
    return checked


def pack(runs: Sequence[Sequence[Checked]], device: torch.device, *, unit: int = 1) -> Packed:
    """One micro-batch of each run's sequences, which have a scored position each. The grid is a
    multiple of ``unit`` places wide."""
    data = [d for run in runs for d in run]
    lengths = [d.length for d in data]
    longest = -(-max(lengths) // unit) * unit
    tokens, positions, own, sources, ends = _place(runs, longest)
    shared = len(tokens) < sum(lengths)
    rows, width = query_rows(own) if shared else (whole_rows(lengths)[0], longest)
    grid = _queries(rows, width, sources)

    def give(array: np.ndarray, wanted: bool = True) -> torch.Tensor | None:
        return torch.from_numpy(array).to(device) if wanted else None

    n_targets = np.concatenate([np.full(len(d.scored), d.n_targets) for d in data])
    of = np.repeat(np.arange(n_targets.size), n_targets)

    def join(arrays: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(arrays)).to(device)

    stretches: list[Stretch] = []
    start = n_scored = 0
    for run, end in zip(runs, ends, strict=True):
        here = sum(len(d.scored) for d in run)
        stretches.append(
            Stretch(
                tokens=slice(start, end),
                scored=slice(n_scored, n_scored + here),
                counts=tuple(len(d.scored) * d.n_targets for d in run),
                inputs_M={
                    name: join([d.inputs[name].reshape(-1) for d in run]) for name in run[0].inputs
                },
            )
        )
        start, n_scored = end, n_scored + here
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
        rows_S=join([sources[i, d.scored] for i, d in enumerate(data)]),
        targets_M=join([d.targets[d.scored].reshape(-1) for d in data]),
        of_M=give(of, len(of) > n_targets.size),
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


def _check(
    i: int, datum: Datum, arch: Arch, loss: Choice | None, expected: Sequence[str]
) -> Checked:
    tokens = _ids(i, "input_tokens", datum.input_tokens, arch.vocab_size)
    targets = _ids(i, "target_tokens", datum.target_tokens, arch.vocab_size)
    mask = np.asarray(datum.mask, dtype=bool)
    n = len(tokens)
    if tokens.ndim > 1:
        raise RequestError(f"datum {i}: input_tokens must be one id per position")
    if n > arch.max_context:
        raise RequestError(
            f"datum {i} has {n} tokens, the model's context is {arch.max_context}: shorten it"
        )
    for name, length in (("target_tokens", len(targets)), ("mask", len(mask))):
        if length != n:
            raise RequestError(f"datum {i}: {length} {name} for {n} input_tokens; give one each")
    if targets.ndim > 1 and loss is not None:
        _check_soft(i, datum, loss)
    scored = np.flatnonzero(mask)
    for name in datum.inputs:
        if name not in INPUTS:
            raise RequestError(f"datum {i} has an input {name!r}; known: {', '.join(INPUTS)}")
        if name not in expected:
            raise RequestError(
                f"datum {i} has the input {name!r}, datum 0 has not: give all or none"
            )
    inputs = {}
    for name in expected:
        if name not in datum.inputs:
            raise RequestError(
                f"datum {i} lacks the input {name!r}; it has {sorted(datum.inputs) or 'none'}"
            )
        inputs[name] = _values(i, name, datum.inputs[name], targets.shape, scored)
    in_mean = inputs.get("sequence_ratio_mask", np.ones(1))
    if len(scored) and not (np.isin(in_mean, (0, 1)).all() and in_mean.any()):
        raise RequestError(
            f"datum {i}: sequence_ratio_mask must be 0 or 1, and 1 at a scored position"
        )
    end = int(scored[-1]) + 1 if len(scored) else 0
    return Checked(tokens=tokens[:end], targets=targets[:end], scored=scored, inputs=inputs)


def _check_soft(i: int, datum: Datum, loss: Choice) -> None:
    if not loss.soft:
        raise RequestError(
            f"datum {i} has several targets per position, {loss.name} takes one: use cross_entropy"
        )
    if set(datum.inputs) != {"weights"}:
        raise RequestError(
            f"datum {i} has several targets per position: its inputs must be 'weights', one for "
            f"each target, and no others; it has {sorted(datum.inputs) or 'none'}"
        )


def _ids(i: int, name: str, values: Sequence, vocab_size: int) -> np.ndarray:
    """``(N,)`` or ``(N, K)``."""
    try:
        ids = np.asarray(values)
    except ValueError:
        raise RequestError(
            f"datum {i}: {name} differ in number from position to position: fill up with weight 0"
        ) from None
    if ids.ndim not in (1, 2) or not ids.size:
        raise RequestError(f"datum {i}: {name} must be a non-empty list of ids")
    if ids.dtype.kind not in "iu":
        raise RequestError(f"datum {i}: {name} must be whole numbers, not {ids.dtype}")
    if ids.min() < 0 or ids.max() >= vocab_size:
        bad = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        raise RequestError(f"datum {i}: {name} holds {bad}; ids run from 0 to {vocab_size - 1}")
    return ids.astype(np.int64)


def _values(
    i: int, name: str, values: Sequence, shape: tuple[int, ...], scored: np.ndarray
) -> np.ndarray:
    """Of the targets' shape; those at scored positions."""
    try:
        array = np.asarray(values, dtype=np.float32)
    except (ValueError, TypeError):
        raise RequestError(f"datum {i}: {name} must be numbers, one for each target") from None
    if array.shape != shape:
        raise RequestError(
            f"datum {i}: {name} has the shape {array.shape}, its targets {shape}; give one each"
        )
    array = array[scored]
    if not np.isfinite(array).all():
        where = int(scored[np.argwhere(~np.isfinite(array))[0][0]])
        raise RequestError(f"datum {i}: {name} is not finite at scored position {where}")
    return array
