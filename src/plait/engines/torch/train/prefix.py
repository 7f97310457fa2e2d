"""Prefix: which training sequences begin alike, so that what they share is computed once.

The samples of a group have one prompt. Its tokens go through the linear layers once; every sample's
attention reads its keys and values, and their gradients add up, so the update is that of computing
each sequence by itself (up to the order of sums). Pure: no tensors.

Invariants: every sequence is in exactly one family, and a family's prefix is one of each member. It
may hold scored positions (the prompt's last predicts every first token): each member reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WORTH = 8
"""Shorter prefixes save less than their bookkeeping."""

ALIKE = 0.8
"""A sequence joins a family if it keeps this share of the family's prefix: samples of one prompt
do, other prompts under the same chat template do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Sequences with a common beginning of ``shared`` tokens (0: a sequence by itself)."""

    members: tuple[int, ...]
    shared: int

    def n_tokens(self, lengths: Sequence[int]) -> int:
        """Tokens that are computed for the family."""
        own = sum(lengths[i] - self.shared for i in self.members)
        return self.shared + own


def families(tokens: Sequence[np.ndarray]) -> list[Family]:
    """Sort sequences into families, in an order that depends on their tokens alone."""
    order = sorted(range(len(tokens)), key=lambda i: (tokens[i].tolist(), i))
    found: list[Family] = []
    members: list[int] = []
    shared = 0
    for i in order:
        if members:
            joined = common(tokens[members[0]][: shared or None], tokens[i])
            if joined >= max(WORTH, ALIKE * shared):
                members.append(i)
                shared = joined
                continue
            found.append(_family(members, shared))
        members, shared = [i], 0
    if members:
        found.append(_family(members, shared))
    return found


def common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _family(members: list[int], shared: int) -> Family:
    return Family(members=tuple(members), shared=shared if len(members) > 1 else 0)
