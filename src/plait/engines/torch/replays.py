"""Replays: which decode steps go through static buffers, and in what sizes. No tensors, no torch.

A small model's decode step on CUDA is bound by the launches of its kernels. One that is recorded as
a graph launches once, but a graph has fixed shapes and addresses. So the rows, and the blocks of
each, are filled up to one of few sizes, and the adapters lie in columns whose number seldom
changes (``stack``): what a graph depends on is its ``Key``. A step with prefill in it, with an
adapter that is not stacked, or with so much cache to read that launches no longer matter, goes the
eager way.
"""

from dataclasses import dataclass

MAX_GATHER_BYTES = 256 << 20
"""Keys and values of one layer, filled up: above, reading them takes longer than the launches, and
the eager way reads short rows and shared prefixes only as far as they go. An estimate: not measured
on a GPU."""

MAX_GRAPHS = 32
"""Kept at a time. All share one pool of memory; each has its buffers and its list of kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a graph is made for. ``columns`` is 0 where no row has an adapter."""

    rows: int
    blocks: int
    columns: int


def fill_up(n: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24 …: at most a third of it is filling."""
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power


def choose(
    *, n_decodes: int, n_chunks: int, n_blocks: int, columns: int | None, block_bytes: int
) -> Key | None:
    """The key of a step, or ``None`` for the eager way.

    ``n_blocks`` is the largest of any row; ``columns`` ``None`` if a row's adapter is not stacked;
    ``block_bytes`` are one block's in one layer.
    """
    if not n_decodes or n_chunks or columns is None:
        return None
    rows, blocks = fill_up(n_decodes), fill_up(n_blocks)
    if rows * blocks * block_bytes > MAX_GATHER_BYTES:
        return None
    return Key(rows=rows, blocks=blocks, columns=columns)
