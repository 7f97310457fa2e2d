"""Scored: the positions of a micro-batch whose log-probs are wanted, as the head takes them.

Sequences that share a prefix are asked for the same targets in it: each position is one row, and
each of its targets is evaluated once, however many sequences read it. Positions with which the loss
cannot change lie apart, for no backward pass need go through the head, or the last layer's MLP,
there.

Invariants: every position is in one part, and in it once; a part's rows rise, so each run's lie
together, in the runs' order; the log-probs of all parts, one part behind the other, hold each
wanted one at its place.

Shapes: N packed tokens, M targets as they are wanted; S rows of a part, U targets of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Positions that go on together behind the last attention."""

    moves: bool
    """False: no loss has a slope here."""
    rows_S: torch.Tensor
    """Packed tokens."""
    runs: tuple[slice, ...]
    """Each run's among the rows; there may be none."""
    targets_U: torch.Tensor
    of_U: torch.Tensor | None
    """The row of each target, rising; ``None`` where each row has one."""


def each_once(
    rows_M: np.ndarray,
    targets_M: np.ndarray,
    moves_M: np.ndarray,
    run_ends: Sequence[int],
    device: torch.device,
) -> tuple[tuple[Scored, ...], torch.Tensor | None]:
    """Parts that are not empty, moving ones first, and the place of each wanted log-prob among
    theirs; ``None`` where they come out in the wanted order.

    ``run_ends``: where each run's packed tokens end.
    """
    moving_N = np.zeros(run_ends[-1], dtype=bool)
    moving_N[rows_M[moves_M]] = True
    places_M = np.empty(len(rows_M), dtype=np.int64)
    found: list[Scored] = []
    n_before, base = 0, int(targets_M.max(initial=0)) + 1
    for moves in (True, False):
        mine_M = moving_N[rows_M] == moves
        if not mine_M.any():
            continue
        pairs_U, of_mine = np.unique(rows_M[mine_M] * base + targets_M[mine_M], return_inverse=True)
        places_M[mine_M] = n_before + of_mine
        n_before += len(pairs_U)
        rows_S, of_U = np.unique(pairs_U // base, return_inverse=True)
        stops = np.searchsorted(rows_S, run_ends).tolist()
        found.append(
            Scored(
                moves=moves,
                rows_S=torch.from_numpy(rows_S).to(device),
                runs=tuple(map(slice, [0, *stops[:-1]], stops)),
                targets_U=torch.from_numpy(pairs_U % base).to(device),
                of_U=torch.from_numpy(of_U).to(device) if len(of_U) > len(rows_S) else None,
            )
        )
    in_order = np.array_equal(places_M, np.arange(n_before))
    return tuple(found), None if in_order else torch.from_numpy(places_M).to(device)


def moving(part: Scored) -> torch.set_grad_enabled:
    """A block in which gradients are kept for what moves alone."""
    return torch.set_grad_enabled(part.moves and torch.is_grad_enabled())


def gathered(logprobs: Sequence[torch.Tensor], places_M: torch.Tensor | None) -> torch.Tensor:
    """The wanted log-probs ``(M,)`` from those of each part."""
    found = logprobs[0] if len(logprobs) == 1 else torch.cat(list(logprobs))
    return found if places_M is None else found.index_select(0, places_M)
