"""Views: which rows of a step attend to which blocks, as tensors.

``batch`` makes them, ``kv`` and ``attention`` read them. N rows of the step, B of them in a view; K
key-value heads; T tokens of a row's own blocks, S of a cluster's shared ones.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedView:
    """Blocks that C clusters of a view's rows have in common (``parts.Shared`` as tensors).

    ``members`` and ``place_B`` are ``None`` where the rows are whole clusters of one size in order.
    """

    blocks: torch.Tensor
    n_clusters: int
    members: torch.Tensor | None
    place_B: torch.Tensor | None
    mask_C1S: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeView:
    """Rows of one query each (``rows_B``; ``None``: the first B), their blocks, what to mask.

    Masks have a copy for each key-value head: first axis K · B (K · C).
    """

    rows_B: torch.Tensor | None
    blocks: torch.Tensor
    n: int
    mask_B1T: torch.Tensor
    shared: SharedView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkView:
    """Rows ``start:end``, of one sequence; ``mask_NT`` is ``None`` where it has no past."""

    start: int
    end: int
    blocks: torch.Tensor
    n_tokens: int
    mask_NT: torch.Tensor | None
