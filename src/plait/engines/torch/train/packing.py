"""Packing: which training sequences go through the model together.

Decides micro-batches from a memory budget and nothing else: no tensors, no clock. Linear layers see
a micro-batch's tokens packed one after the other, attention sees them right-padded to the longest,
so sequences of like length are put together. Same lengths in, same micro-batches out, in an order
that depends on lengths and positions alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plait.engines.torch.arch import Arch


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes that a micro-batch holds at its peak: per packed token, per padded place, and once."""

    token_bytes: int
    place_bytes: int
    fixed_bytes: int = 0

    def of(self, n_tokens: int, n_seqs: int, longest: int) -> int:
        """Bytes of one micro-batch."""
        return self.fixed_bytes + n_tokens * self.token_bytes + n_seqs * longest * self.place_bytes


def train_cost(arch: Arch, item_bytes: int, fixed_bytes: int = 0) -> Cost:
    """What autograd keeps: per layer the inputs of norms and projections, the gates and the
    products of the adapters; for attention padded queries, keys, values and outputs."""
    layer = 5 * arch.hidden + 2 * arch.inter + arch.inter
    attention = 2 * arch.q_size + 2 * arch.kv_size
    transient = 4 * arch.inter + 4 * arch.hidden
    return Cost(
        token_bytes=item_bytes * (arch.n_layers * layer + transient),
        place_bytes=item_bytes * (arch.n_layers * attention + 2 * attention),
        fixed_bytes=fixed_bytes,
    )


def forward_cost(arch: Arch, item_bytes: int, fixed_bytes: int = 0) -> Cost:
    """Without gradients: one layer's worth at a time."""
    return Cost(
        token_bytes=item_bytes * (4 * arch.inter + 6 * arch.hidden),
        place_bytes=item_bytes * 4 * (arch.q_size + arch.kv_size),
        fixed_bytes=fixed_bytes,
    )


def micro_batches(
    lengths: Sequence[int], cost: Cost, budget_bytes: int, max_tokens: int
) -> list[tuple[int, ...]]:
    """Indices per micro-batch, longest sequences first.

    A micro-batch stays within ``budget_bytes`` and ``max_tokens`` unless it is a single sequence,
    which is always tried.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[tuple[int, ...]] = []
    batch: list[int] = []
    n_tokens = 0
    for i in order:
        longest = lengths[batch[0]] if batch else lengths[i]
        more = n_tokens + lengths[i]
        fits = more <= max_tokens and cost.of(more, len(batch) + 1, longest) <= budget_bytes
        if batch and not fits:
            batches.append(tuple(batch))
            batch, more = [], lengths[i]
        batch.append(i)
        n_tokens = more
    if batch:
        batches.append(tuple(batch))
    return batches


def halves(batch: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two micro-batches to try where ``batch`` (two sequences or more) was too large."""
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]
