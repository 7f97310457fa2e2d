"""Passes: takes the data of one or several runs through the model, micro-batch by micro-batch.

Micro-batches are planned over all runs' sequences together; inside one, a run's sequences lie
together. Those of one round are carried out at once. Where memory is short there is one at a time
from then on; one that does not fit by itself is tried again in halves. What fails of a run ends
that run's share alone, and its sequences are left out of what follows. What is done with a
micro-batch is the caller's.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Generic, TypeVar

import torch

from plait.core.errors import EngineError, PlaitError
from plait.core.ids import RunId
from plait.engines.protocol import TrainStep
from plait.engines.torch.exact import VECTOR
from plait.engines.torch.lanes import Lanes, OnLayer
from plait.engines.torch.memory import out_of_memory
from plait.engines.torch.train.batch import Packed, pack
from plait.engines.torch.train.checked import Checked
from plait.engines.torch.train.packing import Batch, halves
from plait.engines.torch.train.prefix import Family, families

Logprobs = tuple[float, ...]
Plan = Callable[[list[int], list[Family]], list[tuple[Batch, ...]]]
"""From lengths and families to the micro-batches of each round, as ``packing.rounds``."""


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
R = TypeVar("R")
Compute = Callable[[Packed, Sequence[S], OnLayer], R]
"""Takes a micro-batch through the model, given the share of each of its stretches. Changes nothing:
it may have to be done again, and others are under way."""
Keep = Callable[[R, Sequence[S]], torch.Tensor]
"""Takes what was made to where it belongs; the log-probs ``(M,)``."""


def passes(
    shares: Sequence[S],
    compute: "Compute[S, R]",
    keep: "Keep[R, S]",
    plan: Plan,
    lanes: Lanes,
    device: torch.device,
    *,
    forward_only: bool,
    exact: bool = False,
) -> Generator[TrainStep, None, None]:
    """Fill the shares' log-probs; micro-batches are kept in the order of the plan, however many
    were under way at once. ``exact``: free memory decides nothing."""
    places, alike = _line_up(shares)
    waiting = deque(plan([shares[s].checked[i].length for s, i in places], alike))

    def begin(batch: Batch) -> "_Begun[S]":
        # Stable: inside a run longest first, as planned.
        together = groupby(sorted((places[j] for j in batch), key=lambda p: p[0]), lambda p: p[0])
        indices = {s: [i for _, i in found] for s, found in together}
        return _Begun(batch, [shares[s] for s in indices], list(indices.values()))

    def carry_out(begun: "_Begun[S]", on_layer: OnLayer) -> tuple[Packed, R]:
        packed = begun.pack(device, VECTOR if exact else 1)
        return packed, compute(packed, begun.shares, on_layer)

    while waiting:
        wanted = [
            tuple(j for j in batch if shares[places[j][0]].error is None)
            for batch in waiting.popleft()
        ]
        here = [begin(batch) for batch in wanted if batch]
        made = lanes.run([partial(carry_out, begun) for begun in here])
        again: list[Batch] = []
        for begun, result in zip(here, made, strict=True):
            try:
                packed, found = result()
            except (RuntimeError, MemoryError) as e:
                if not out_of_memory(e):
                    raise
                if len(here) > 1:  # each by itself may fit
                    again.append(begun.batch)
                elif len(begun.batch) == 1:
                    begun.shares[0].error = _too_large(begun, e)
                elif exact:
                    raise EngineError(
                        "a micro-batch does not fit into memory, and halves of it would have other "
                        "bits: free memory, or run without deterministic mode"
                    ) from e
                else:
                    again.extend(halves(begun.batch))
                continue
            tokens = begun.deliver(packed, keep(found, begun.shares))
            yield TrainStep(
                n_tokens=sum(tokens.values()), tokens_by_run=tokens, forward_only=forward_only
            )
        if again:
            again += [batch for batches in waiting for batch in batches]
            waiting = deque((batch,) for batch in again)


@dataclass(frozen=True, slots=True)
class _Begun(Generic[S]):
    """A micro-batch: its places, and the shares that it is of, with the data of each."""

    batch: Batch
    shares: list[S]
    indices: list[list[int]]

    def pack(self, device: torch.device, unit: int) -> Packed:
        by_share = zip(self.shares, self.indices, strict=True)
        data = [[share.checked[i] for i in found] for share, found in by_share]
        return pack(data, device, unit=unit)

    def deliver(self, packed: Packed, logprobs_M: torch.Tensor) -> dict[RunId, int]:
        """Log-probs to their shares; tokens of each run."""
        tokens: dict[RunId, int] = {}
        rows = logprobs_M.split([sum(stretch.counts) for stretch in packed.stretches])
        by_share = zip(self.shares, self.indices, packed.stretches, rows, strict=True)
        for share, found, stretch, mine_M in by_share:
            tokens[share.run_id] = stretch.tokens.stop - stretch.tokens.start
            for i, values in zip(found, mine_M.split(stretch.counts), strict=True):
                share.logprobs[i] = tuple(values.tolist())
        return tokens


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


def _too_large(begun: _Begun[Share], cause: Exception) -> EngineError:
    index = begun.indices[0][0]
    error = EngineError(
        f"datum {index} alone ({begun.shares[0].checked[index].length} tokens) does not fit into "
        "memory: shorten it or free memory"
    )
    error.__cause__ = cause
    return error
