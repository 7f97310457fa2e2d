"""Products: the matrix products and gates of training, plain or exact.

``PLAIN`` is what is fastest. ``Exact`` gives the same bits with any number of threads, and in the
forward pass those of the sampler (``engines.torch.exact``), at the price of a packed copy of the
weights: to pack them anew in each product would cost a fifth of the time.

Shapes: N tokens, I inputs and O outputs, R rows of an adapter, J inner size of the MLP.
"""

from typing import Protocol

import torch
import torch.nn.functional as F

from plait.engines.torch import exact
from plait.engines.torch.packed import Linear, plain_rows


class Products(Protocol):
    """How training multiplies; ``exact`` where all else must be so too."""

    exact: bool

    def linear(
        self, x_NI: torch.Tensor, w_OI: torch.Tensor, bias_O: torch.Tensor | None
    ) -> torch.Tensor:
        """``x W^T + bias``."""
        ...

    def back(self, dy_NO: torch.Tensor, w_OI: torch.Tensor) -> torch.Tensor:
        """``dy W``."""
        ...

    def inner(self, x_NI: torch.Tensor, a_RI: torch.Tensor) -> torch.Tensor:
        """``a x^T``, ``(R, N)``."""
        ...

    def spread(self, y_NO: torch.Tensor, u_RN: torch.Tensor, bt_RO: torch.Tensor) -> None:
        """``y += u^T b``."""
        ...

    def accumulate(
        self, grad_RO: torch.Tensor, left_RN: torch.Tensor, right_NO: torch.Tensor
    ) -> None:
        """``grad += left right``."""
        ...

    def silu(self, gate_NJ: torch.Tensor) -> torch.Tensor:
        """``gate · sigmoid(gate)``."""
        ...

    def silu_back_(self, dsilu_NJ: torch.Tensor, gate_NJ: torch.Tensor) -> None:
        """The gradient at ``gate``, in its place."""
        ...


class _Plain:
    """The adapters' products keep the long dimension last (u is R × N, B is R × O): with so few
    rows the other way round runs at a tenth of the rate."""

    exact = False

    def linear(self, x_NI, w_OI, bias_O):
        return F.linear(x_NI, w_OI, bias_O)

    def back(self, dy_NO, w_OI):
        return dy_NO @ w_OI

    def inner(self, x_NI, a_RI):
        return a_RI @ x_NI.T

    def spread(self, y_NO, u_RN, bt_RO):
        y_NO.addmm_(u_RN.T, bt_RO)

    def accumulate(self, grad_RO, left_RN, right_NO):
        if left_RN.dtype == grad_RO.dtype:
            grad_RO.addmm_(left_RN, right_NO)
        else:
            grad_RO.add_(left_RN @ right_NO)

    def silu(self, gate_NJ):
        return F.silu(gate_NJ)

    def silu_back_(self, dsilu_NJ, gate_NJ):
        torch.ops.aten.silu_backward.grad_input(dsilu_NJ, gate_NJ, grad_input=gate_NJ)


class Exact:
    """oneDNN's products (``base`` for the base model's own weights) but for the base model's
    backward pass: the plain one is faster there and, with enough rows, as good."""

    exact = True

    def __init__(self, base: Linear) -> None:
        self._base = base

    def linear(self, x_NI, w_OI, bias_O):
        return self._base(x_NI, w_OI, bias_O)

    def back(self, dy_NO, w_OI):
        n = len(dy_NO)
        missing = plain_rows() - n
        return (F.pad(dy_NO, (0, 0, 0, missing)) @ w_OI)[:n] if missing > 0 else dy_NO @ w_OI

    def inner(self, x_NI, a_RI):
        return exact.linear(x_NI, a_RI, None).T

    def spread(self, y_NO, u_RN, bt_RO):
        y_NO.add_(exact.linear(u_RN.T, bt_RO.T, None))

    def accumulate(self, grad_RO, left_RN, right_NO):
        # oneDNN takes hundreds of times as long to read columns of a wider matrix.
        grad_RO.add_(exact.linear(left_RN, right_NO.contiguous().T, None))

    def silu(self, gate_NJ):
        return exact.silu(gate_NJ)

    def silu_back_(self, dsilu_NJ, gate_NJ):
        for rows in exact.pieces(gate_NJ):
            torch.ops.aten.silu_backward.grad_input(
                dsilu_NJ[rows], gate_NJ[rows], grad_input=gate_NJ[rows]
            )


PLAIN: Products = _Plain()
