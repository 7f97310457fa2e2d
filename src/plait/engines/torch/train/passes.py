"""Passes: takes the data of one or several runs through the model, micro-batch by micro-batch.

Micro-batches are planned over all runs' sequences together; inside one, a run's sequences lie
together. One that does not fit into memory is tried again in halves. What fails of a run ends that
run's share alone, and its sequences are left out of what follows. What is done with a micro-batch
is the caller's.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

import torch

from plait.core.errors import EngineError, PlaitError
from plait.core.ids import RunId
from plait.engines.protocol import TrainStep
from plait.engines.torch.exact import VECTOR
from plait.engines.torch.train.batch import Packed, pack
from plait.engines.torch.train.checked import Checked
from plait.engines.torch.train.packing import halves
from plait.engines.torch.train.prefix import Family, families

Logprobs = tuple[float, ...]
Plan = Callable[[list[int], list[Family]], list[tuple[int, ...]]]
"""From lengths and families to micro-batches, as ``packing.micro_batches``."""


@dataclass(slots=True, kw_only=True, eq=False)
class Share:
    """One run's data in a pass, and what has become of it."""

    run_id: RunId
    checked: Sequence[Checked]
    logprobs: list[Logprobs] = field(init=False)
    """At scored positions, per datum."""
    error: PlaitError | None = None

    def __post_init__(self) -> None:
        self.logprobs = [()] * len(self.checked)


S = TypeVar("S", bound=Share)


def passes(
    shares: Sequence[S],
    carry_out: Callable[[Packed, Sequence[S]], torch.Tensor],
    plan: Plan,
    device: torch.device,
    *,
    forward_only: bool,
    exact: bool = False,
) -> Generator[TrainStep, None, None]:
    """Fill the shares' log-probs. ``carry_out`` makes those of one micro-batch ``(M,)``; it gets
    the share of each of the batch's stretches. ``exact``: free memory decides
    nothing."""
    places, alike = _line_up(shares)
    waiting = deque(plan([shares[s].checked[i].length for s, i in places], alike))
    while waiting:
        batch = tuple(j for j in waiting.popleft() if shares[places[j][0]].error is None)
        if not batch:
            continue
        # Stable: inside a run longest first, as planned.
        together = groupby(sorted((places[j] for j in batch), key=lambda p: p[0]), lambda p: p[0])
        indices = {s: [i for _, i in found] for s, found in together}
        here = [shares[s] for s in indices]
        try:
            data = [[shares[s].checked[i] for i in indices[s]] for s in indices]
            packed = pack(data, device, unit=VECTOR if exact else 1)
            logprobs_M = carry_out(packed, here)
        except (RuntimeError, MemoryError) as e:
            if not _out_of_memory(e):
                raise
            if len(batch) == 1:
                ((s, i),) = (places[j] for j in batch)
                shares[s].error = _too_large(i, shares[s].checked[i], e)
            elif exact:
                raise EngineError(
                    "a micro-batch does not fit into memory, and halves of it would have other "
                    "bits: free memory, or run without deterministic mode"
                ) from e
            else:
                waiting.extendleft(reversed(halves(batch)))
            continue
        tokens: dict[RunId, int] = {}
        rows = logprobs_M.split([sum(stretch.counts) for stretch in packed.stretches])
        by_share = zip(here, indices.values(), packed.stretches, rows, strict=True)
        for share, found, stretch, mine_M in by_share:
            tokens[share.run_id] = stretch.tokens.stop - stretch.tokens.start
            for i, values in zip(found, mine_M.split(stretch.counts), strict=True):
                share.logprobs[i] = tuple(values.tolist())
        yield TrainStep(
            n_tokens=sum(tokens.values()), tokens_by_run=tokens, forward_only=forward_only
        )


def _line_up(shares: Sequence[Share]) -> tuple[list[tuple[int, int]], list[Family]]:
    """(share, datum) of everything that is scored, and which of these begin alike: sequences of one
    run only, since another's adapter makes other keys and values of the same tokens."""
    places: list[tuple[int, int]] = []
    alike: list[Family] = []
    for s, share in enumerate(shares):
        scored = [i for i, c in enumerate(share.checked) if len(c.scored)]
        for f in families([share.checked[i].tokens for i in scored]):
            members = tuple(len(places) + i for i in f.members)
            alike.append(Family(members=members, shared=f.shared))
        places += [(s, i) for i in scored]
    return places, alike


def _out_of_memory(error: Exception) -> bool:
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in str(error)
        or "not enough memory" in str(error)
    )


def _too_large(index: int, datum: Checked, cause: Exception) -> EngineError:
    error = EngineError(
        f"datum {index} alone ({datum.length} tokens) does not fit into memory: shorten it or free "
        "memory"
    )
    error.__cause__ = cause
    return error
