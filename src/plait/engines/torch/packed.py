"""Packed: the base model's matrices in the layout that the CPU's matrix kernels want.

oneDNN's blocked layout, made once and private to the process that samples; the mapped weights stay
what training and everybody else use. Two gains: small batches run up to 1.5 times as fast, because
nothing is repacked in every product, and a row's result has the same bits whatever the number of
rows and threads, so that nothing need be padded. Where memory is short the head alone is packed:
it is a fifth of a small model and gains most. Elsewhere than on a CPU in fp32 the plain product is
used.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from plait.engines.torch.weights import Weights

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""``(x_NI, w_OI, bias_O) -> y_NO``."""

PACK_ROWS = 64
"""Rows that the layout is asked for; from 8 rows on it is the same one for all counts."""


THREAD_ROWS = 8
"""Plain fp32 products give a row the same bits whatever the other rows are, and however many
threads share the work, as long as no thread gets a handful of rows: for those the kernel changes.
Smaller ones are padded (measured with MKL on one and two threads: 4 and 12 rows suffice)."""


def plain_rows() -> int:
    """Rows that a plain product has at least."""
    return THREAD_ROWS * torch.get_num_threads()


def one_row() -> int:
    """Rows that a packed product, or any on CUDA, has at least."""
    return 1


def pack_matrix(w_OI: torch.Tensor) -> torch.Tensor:
    """A packed copy of a CPU's fp32 matrix."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(w_OI, PACK_ROWS)
    return packed


def packed_product(
    x_NI: torch.Tensor, packed_OI: torch.Tensor, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """``x W^T + bias`` by oneDNN, which takes a matrix that is not packed as well."""
    y_NO: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x_NI, packed_OI, bias_O, "none", [], "")
    return y_NO


def make_linear(weights: Weights, *, layers: bool = True) -> tuple[Linear, Callable[[], int]]:
    """The product to use with ``weights``' own tensors (which are the keys of the packed copies),
    and how many rows to give it at least. Without ``layers`` only the head is packed."""
    if weights.device.type != "cpu":
        return F.linear, one_row
    if weights.dtype != torch.float32:
        return F.linear, plain_rows
    if not torch.backends.mkldnn.is_available():
        return F.linear, plain_rows
    plain = [weights.head]
    for layer in weights.layers if layers else ():
        plain += [layer.qkv, layer.o, layer.gate_up, layer.down]
    packed = {id(w): pack_matrix(w) for w in plain}

    def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if (matrix := packed.get(id(w))) is None:
            return F.linear(x, w, bias)
        return packed_product(x, matrix, bias)

    return linear, one_row if layers else plain_rows
