"""Packing: which training sequences go through the model together.

Decides micro-batches from a memory budget and nothing else: no tensors, no clock. Linear layers see
a micro-batch's tokens packed one after the other, attention sees them right-padded to the longest,
so sequences of like length are put together. Same lengths in, same micro-batches out, in an order
that depends on lengths and positions alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.engines.torch.sizes import Sizes
from plait.engines.torch.train.prefix import Family

Batch = tuple[int, ...]
"""Indices of the sequences of one micro-batch."""

SHORT = 160
"""Longest sequence of a micro-batch for which attention makes whole rows of scores (measured:
faster than the fused kernel up to there, though half of them are masked away)."""

SLACK = 1.2
"""What an allocator really takes by what is asked of it (measured: glibc 1.15)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes that a micro-batch holds at its peak."""

    token_bytes: int
    """Per packed token."""
    place_bytes: int
    """Per place of the padded grid."""
    score_bytes: int = 0
    """Per pair of places of one sequence, where whole rows of scores are made."""
    fixed_bytes: int = 0

    def of(self, n_tokens: int, n_seqs: int, longest: int) -> int:
        """Bytes of one micro-batch."""
        places = n_seqs * longest
        scores = places * longest if longest <= SHORT else 0
        grid = places * self.place_bytes + scores * self.score_bytes
        return self.fixed_bytes + n_tokens * self.token_bytes + grid


ENOUGH_TOKENS = 128
"""A micro-batch of so many tokens runs at the machine's rate (measured: from about 100)."""

LANE_TOKENS = 250
"""A micro-batch that is smaller on average is better carried out by itself, with all cores."""

AGAIN = 0.1
"""Share of tokens that may be computed again so that micro-batches can be carried out side by side:
smaller ones have more beginnings in them."""


def train_cost(
    arch: Sizes, item_bytes: int, fixed_bytes: int = 0, *, recompute: bool = False
) -> Cost:
    """What the backward pass needs: per layer the inputs of norms, projections and attention, and
    gates; beside them the widest layer's gradients, and one layer's padded queries, keys, values
    and scores with theirs. With ``recompute`` a layer's input alone, and all of one layer."""
    kept = 2 * arch.hidden + 2 * arch.q_size + 2 * arch.kv_size + 2 * arch.inter
    layers = arch.n_layers * arch.hidden + kept if recompute else arch.n_layers * kept
    passing = 4 * arch.inter + 4 * arch.hidden
    return Cost(
        token_bytes=item_bytes * (layers + passing),
        place_bytes=item_bytes * 4 * (arch.q_size + arch.kv_size),
        score_bytes=item_bytes * 3 * arch.n_heads,
        fixed_bytes=fixed_bytes,
    )


def forward_cost(arch: Sizes, item_bytes: int, fixed_bytes: int = 0) -> Cost:
    """Without gradients: one layer's worth at a time."""
    return Cost(
        token_bytes=item_bytes * (4 * arch.inter + 6 * arch.hidden),
        place_bytes=item_bytes * 4 * (arch.q_size + arch.kv_size),
        score_bytes=item_bytes * 2 * arch.n_heads,
        fixed_bytes=fixed_bytes,
    )


def micro_batches(
    lengths: Sequence[int],
    cost: Cost,
    budget_bytes: int,
    max_tokens: int,
    alike: Sequence[Family] = (),
) -> list[Batch]:
    """Indices per micro-batch, longest sequences first, families of ``alike`` together.

    A micro-batch stays within ``budget_bytes`` and ``max_tokens`` unless it is a single sequence,
    which is always tried. A family's prefix counts once per micro-batch, so one that has room in a
    micro-batch is not cut to fill up another that has enough.
    """

    def fits(n_tokens: int, n_seqs: int, longest: int) -> bool:
        return n_tokens <= max_tokens and cost.of(n_tokens, n_seqs, longest) <= budget_bytes

    family = {i: f for f in alike for i in f.members}
    order = sorted(range(len(lengths)), key=lambda i: (*_rank(i, lengths, family), -lengths[i], i))
    batches: list[Batch] = []
    batch: list[int] = []
    n_tokens = longest = 0
    for i in order:
        its = family.get(i)
        known = batch and its is not None and its is family.get(batch[-1])
        more = n_tokens + lengths[i] - (its.shared if its and known else 0)
        longest = max(longest, lengths[i])
        full = not fits(more, len(batch) + 1, longest)
        if its and its.shared and not known and n_tokens >= ENOUGH_TOKENS:
            n, whole = len(its.members), its.n_tokens(lengths)
            full |= fits(whole, n, lengths[i]) and not fits(
                n_tokens + whole, len(batch) + n, longest
            )
        if batch and full:
            batches.append(tuple(batch))
            batch, more, longest = [], lengths[i], lengths[i]
        batch.append(i)
        n_tokens = more
    if batch:
        batches.append(tuple(batch))
    return batches


def rounds(
    lengths: Sequence[int],
    cost: Cost,
    budget_bytes: int,
    max_tokens: int,
    alike: Sequence[Family] = (),
    *,
    lanes: int = 1,
) -> list[tuple[Batch, ...]]:
    """Micro-batches one after the other, or ``lanes`` at a time where that pays (``LANE_TOKENS``,
    ``AGAIN``): of like size then, and within the budget together."""

    def plan(most: int, parts: int = lanes) -> list[Batch]:
        return micro_batches(lengths, cost, budget_bytes // parts, most, alike)

    def n_tokens(batches: Sequence[Batch]) -> int:
        return sum(_n_tokens(batch, lengths, alike) for batch in batches)

    one_by_one = plan(max_tokens, 1)
    n = -(-len(plan(max_tokens)) // lanes) * lanes
    low, high = n_tokens(one_by_one) // max(n, 1), max_tokens
    if lanes == 1 or low < LANE_TOKENS:
        return [(batch,) for batch in one_by_one]
    while low < high:  # the fewest tokens with which n micro-batches do
        middle = (low + high) // 2
        low, high = (low, middle) if len(plan(middle)) <= n else (middle + 1, high)
    even = plan(high)
    if len(even) % lanes or n_tokens(even) > (1 + AGAIN) * n_tokens(one_by_one):
        return [(batch,) for batch in one_by_one]
    return [tuple(even[i : i + lanes]) for i in range(0, len(even), lanes)]


def _n_tokens(batch: Batch, lengths: Sequence[int], alike: Sequence[Family]) -> int:
    """Tokens that are computed for a micro-batch."""
    known = sum(f.shared * max(0, len(set(batch) & set(f.members)) - 1) for f in alike)
    return sum(lengths[i] for i in batch) - known


def _rank(i: int, lengths: Sequence[int], family: Mapping[int, Family]) -> tuple[int, int]:
    """Longest member of ``i``'s family, and which family that is."""
    members = family[i].members if i in family else (i,)
    return -max(lengths[j] for j in members), min(members)


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """The two micro-batches to try where ``batch`` (two sequences or more) was too large."""
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]
