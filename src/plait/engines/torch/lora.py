"""LoRA: adapters for inference, several in one batch.

Rows are sorted so that each adapter owns one stretch of them (two at most); each stretch gets two
small matrix products per fused projection, added to the base model's output in place. No row ever
meets another adapter's numbers, so ranks can be mixed and a NaN stays at home.

Shapes: R rank; a fused projection's A matrices are stacked to ``[ΣR, in]``, the B matrices lie on
the diagonal of ``[out, ΣR]``, scaled by alpha / rank.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from plait.adapters.peft import Adapter
from plait.core.errors import ModelError
from plait.core.runs import MAX_RANK
from plait.engines.torch.packed import pack_matrix, packed_product
from plait.engines.torch.sizes import Sizes

WHOLE_RANK = 8
"""Up to this rank the B matrices of a fused projection are applied as one block-diagonal matrix:
the zeros cost less than further calls. Above, each on its own columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """An adapter's part in one fused projection: ``y += x a whole``, or by columns where there are
    ``parts``: (columns of ``x a``, columns of ``y``, b)."""

    a_IR: torch.Tensor
    whole: torch.Tensor | None
    parts: tuple[tuple[slice, slice, torch.Tensor], ...] = ()

    def add(self, x_ND: torch.Tensor, y_NO: torch.Tensor) -> None:
        """``y += x A B``, in place."""
        xa = x_ND @ self.a_IR
        if self.whole is not None:
            y_NO.addmm_(xa, self.whole)
        for rank, columns, b in self.parts:
            y_NO[:, columns].addmm_(xa[:, rank], b)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPiece:
    """The same with the trainer's bits: packed products, the scale between them."""

    a_RI: torch.Tensor
    b_OR: torch.Tensor
    scale: float

    def add(self, x_ND: torch.Tensor, y_NO: torch.Tensor) -> None:
        """``y += x A B``, in place."""
        xa = packed_product(x_ND, self.a_RI).mul_(self.scale)
        y_NO.add_(packed_product(xa, self.b_OR))


Pieces = dict[tuple[int, str], Piece | ExactPiece]


def pack_adapter(
    adapter: Adapter, arch: Sizes, *, dtype: torch.dtype, device: str, exact: bool = False
) -> Pieces:
    """Fuse an adapter's matrices; ModelError if a shape does not match the model."""
    if not 1 <= adapter.spec.rank <= MAX_RANK:
        raise ModelError(f"LoRA rank {adapter.spec.rank} is outside 1 … {MAX_RANK}")
    scale = adapter.spec.alpha / adapter.spec.rank
    factor = 1.0 if exact else scale
    pieces: Pieces = {}
    for site in arch.sites:
        found, at = [], 0
        for module, n_out in site.modules:
            if (pair := adapter.pairs.get((site.layer, module))) is not None:
                _check(site.layer, module, pair, (adapter.spec.rank, site.n_in, n_out))
                found.append((at, pair[0], pair[1] * factor))
            at += n_out
        if found:
            pieces[site.layer, site.group] = (
                _exact_piece(found, at, scale) if exact else _piece(found, at, dtype, device)
            )
    return pieces


class LoraBatch:
    """The adapters of one step; ``segments`` are (start, end, pieces or ``None``), in row order.

    A lone adapter's rows are padded to ``lone_rows``, so that what one run draws does not depend on
    how many of its samples happen to be left (``packed.plain_rows``).
    """

    def __init__(
        self, segments: Sequence[tuple[int, int, Pieces | None]], *, lone_rows: int = 1
    ) -> None:
        self._segments = [s for s in segments if s[2]]
        self._lone_rows = lone_rows
        self._n_padding = 0
        if len(self._segments) == 1:
            start, end, _ = self._segments[0]
            self._n_padding = max(0, lone_rows - (end - start))

    @property
    def is_empty(self) -> bool:
        return not self._segments

    def at(self, rows: Sequence[int]) -> "LoraBatch":
        """The adapters of these rows alone, which are given in rising order."""
        found = [(bisect_left(rows, s), bisect_left(rows, e), p) for s, e, p in self._segments]
        return LoraBatch([f for f in found if f[0] < f[1]], lone_rows=self._lone_rows)

    def add(self, layer: int, group: str, x_ND: torch.Tensor, y_NO: torch.Tensor) -> torch.Tensor:
        for start, end, pieces in self._segments:
            piece = pieces.get((layer, group))
            if piece is None:
                continue
            x, y = x_ND[start:end], y_NO[start:end]
            if self._n_padding:
                rows = F.pad(y, (0, 0, 0, self._n_padding))
                piece.add(F.pad(x, (0, 0, 0, self._n_padding)), rows)
                y.copy_(rows[: end - start])
            else:
                piece.add(x, y)
        return y_NO


def _piece(
    found: list[tuple[int, torch.Tensor, torch.Tensor]], n_out: int, dtype: torch.dtype, device: str
) -> Piece:
    """Fuse (first column of ``y``, A, scaled B) of the modules that the adapter changes."""
    a_IR = torch.cat([a for _, a, _ in found]).to(device, dtype).contiguous().t()
    # B as [R, O] in memory: the product with few rows is then a sum of long rows (1.4 × faster).
    b_RO = [b.t().to(device, dtype).contiguous() for _, _, b in found]
    rank = found[0][1].shape[0]
    places = [
        (slice(i * rank, (i + 1) * rank), slice(at, at + b.shape[0]))
        for i, (at, _, b) in enumerate(found)
    ]
    if rank > WHOLE_RANK and b_RO[0].shape[1] < n_out:
        parts = tuple((*place, b) for place, b in zip(places, b_RO, strict=True))
        return Piece(a_IR=a_IR, whole=None, parts=parts)
    whole = torch.zeros(rank * len(found), n_out, dtype=dtype, device=device)
    for (ranks, columns), b in zip(places, b_RO, strict=True):
        whole[ranks, columns] = b
    return Piece(a_IR=a_IR, whole=whole)


def _exact_piece(
    found: list[tuple[int, torch.Tensor, torch.Tensor]], n_out: int, scale: float
) -> ExactPiece:
    """Both matrices packed; B block-diagonal, whose zeros change no bits."""
    rank = found[0][1].shape[0]
    b_OR = torch.zeros(n_out, rank * len(found))
    for i, (at, _, b) in enumerate(found):
        b_OR[at : at + b.shape[0], i * rank : (i + 1) * rank] = b
    a_RI = torch.cat([a.float() for _, a, _ in found])
    return ExactPiece(a_RI=pack_matrix(a_RI), b_OR=pack_matrix(b_OR), scale=scale)


def _check(
    layer: int, module: str, pair: tuple[torch.Tensor, torch.Tensor], want: tuple[int, int, int]
) -> None:
    rank, n_in, n_out = want
    if pair[0].shape != (rank, n_in) or pair[1].shape != (n_out, rank):
        raise ModelError(
            f"adapter for layer {layer} {module} has A {tuple(pair[0].shape)} and B "
            f"{tuple(pair[1].shape)}; the base model needs {(rank, n_in)} and {(n_out, rank)}"
        )
