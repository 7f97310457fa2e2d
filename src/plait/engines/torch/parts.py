"""Parts: how the decoding rows of a step are put together for attention. No tensors, no torch.

Two things waste memory traffic, which is what attention at decode costs: rows padded to the length
of a much longer one, and a prefix that many rows share (the samples of a group, a system prompt)
gathered once for each of them. So rows are first cut into parts of like length, and within a part
the blocks that a cluster of rows has in common are set apart, to be read once for all of them.

Invariant: a row's blocks are its cluster's shared ones followed by its own, and every row has at
least one block of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PART_COST_BYTES = 400_000
"""What a further part costs in calls, as the keys and values of one layer that could be gathered in
that time (measured on two cores, as is the next)."""

SHARED_COST_BYTES = 2_400_000
"""The same for setting shared blocks apart: below this much saved it does not pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Blocks that clusters of rows have in common. ``members_CM`` are places in the part's
    ``rows``, filled up with the cluster's first; ``place_B`` is a row's place among them."""

    table_CS: np.ndarray
    n_blocks_C: np.ndarray
    members_CM: np.ndarray
    place_B: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows that go through attention together: their own blocks, and what they share."""

    rows: np.ndarray
    table_BN: np.ndarray
    n_shared_B: np.ndarray
    """Blocks of each row that lie in ``shared`` instead of ``table_BN``."""
    shared: Shared | None


def make_parts(
    table_BN: np.ndarray,
    n_blocks_B: np.ndarray,
    groups: Sequence[int],
    *,
    null_block: int,
    block_bytes: int,
    share: bool = True,
) -> list[Part]:
    """Divide rows with these block tables; ``groups`` says which have a prompt in common.

    ``block_bytes`` is the size of one block in one layer. Without ``share`` no block is set apart.
    """
    parts = []
    for rows in _by_length(n_blocks_B, block_bytes):
        clusters = _clusters(table_BN, n_blocks_B, groups, rows)
        saved = sum((len(members) - 1) * shared for members, shared in clusters)
        if not share or saved * block_bytes < SHARED_COST_BYTES:
            parts.append(_part(table_BN, n_blocks_B, rows, [], null_block))
            continue
        clustered = np.concatenate([members for members, _ in clusters])
        parts.append(_part(table_BN, n_blocks_B, clustered, clusters, null_block))
        if len(loose := np.setdiff1d(rows, clustered)):
            parts.append(_part(table_BN, n_blocks_B, loose, [], null_block))
    return parts


def _by_length(n_blocks_B: np.ndarray, block_bytes: int) -> list[np.ndarray]:
    """Rows in pieces of like length: split where that saves most, while it saves enough."""
    order = np.argsort(-n_blocks_B, kind="stable")
    done, todo = [], [order]
    while todo:
        rows = todo.pop()
        lengths = n_blocks_B[rows]
        n = len(rows)
        saved = (n - np.arange(n)) * (lengths[0] - lengths)
        cut = int(saved.argmax())
        if saved[cut] * block_bytes > PART_COST_BYTES:
            todo += [rows[cut:], rows[:cut]]
        else:
            done.append(np.sort(rows))
    return done


def _clusters(
    table_BN: np.ndarray, n_blocks_B: np.ndarray, groups: Sequence[int], rows: np.ndarray
) -> list[tuple[np.ndarray, int]]:
    """(rows, number of leading blocks in common) of two or more rows each, disjoint.

    Rows of one prompt first; what is left over by the first block alone.
    """
    by_group: dict[tuple[int, int], list[int]] = {}
    for row in rows.tolist():
        by_group.setdefault((groups[row], int(table_BN[row, 0])), []).append(row)
    by_block: dict[int, list[int]] = {}
    found = []
    for (_, block), members in by_group.items():
        if len(members) > 1:
            found.append(np.array(members))
        else:
            by_block.setdefault(block, []).extend(members)
    found += [np.array(members) for members in by_block.values() if len(members) > 1]
    clusters = []
    for members in found:
        tables = table_BN[members]
        differs = (tables != tables[0]).any(0)
        same = int(differs.argmax()) if differs.any() else tables.shape[1]
        shared = min(same, int(n_blocks_B[members].min()) - 1)
        if shared > 0:
            clusters.append((members, shared))
    return clusters


def _part(
    table_BN: np.ndarray,
    n_blocks_B: np.ndarray,
    rows: np.ndarray,
    clusters: list[tuple[np.ndarray, int]],
    null_block: int,
) -> Part:
    n_shared = np.zeros(len(rows), dtype=np.int64)
    shared = None
    if clusters:
        n_shared = np.repeat([s for _, s in clusters], [len(m) for m, _ in clusters])
        shared = _shared(table_BN, clusters, null_block)
    own = n_blocks_B[rows] - n_shared
    column = np.arange(int(own.max()))
    inside = column < own[:, None]
    place = np.minimum(n_shared[:, None] + column, table_BN.shape[1] - 1)
    table = np.where(inside, np.take_along_axis(table_BN[rows], place, 1), null_block)
    return Part(rows=rows, table_BN=table, n_shared_B=n_shared, shared=shared)


def _shared(
    table_BN: np.ndarray, clusters: list[tuple[np.ndarray, int]], null_block: int
) -> Shared:
    n_blocks = np.array([s for _, s in clusters])
    sizes = np.array([len(m) for m, _ in clusters])
    most, column = int(sizes.max()), np.arange(int(n_blocks.max()))
    first = np.array([m[0] for m, _ in clusters])
    table = np.where(column < n_blocks[:, None], table_BN[first][:, : len(column)], null_block)
    start = np.cumsum(sizes) - sizes
    member = np.arange(most)
    members = start[:, None] + np.where(member < sizes[:, None], member, 0)
    place = np.repeat(np.arange(len(sizes)) * most - start, sizes) + np.arange(sizes.sum())
    return Shared(table_CS=table, n_blocks_C=n_blocks, members_CM=members, place_B=place)
