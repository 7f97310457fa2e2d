"""Ops: the pieces of a decoder block, each with its own backward pass.

All weights but the adapters are frozen, so that each backward pass is written out with what that
allows: no weight gradients; norms and gated products made again instead of kept; an adapter's
gradients added where they belong (``Fused.da``, ``Fused.dbts``) without passing through autograd.
Functions take ``Fused.marker`` so that autograd records them even where their input needs no
gradient.

Rows of several runs share the products with the base weights; each run's adapter meets its own rows
alone, so neither ranks nor a NaN of one run concern another.

Shapes: N tokens, D hidden, I inputs and O outputs of a fused projection, J inner size of the MLP; K
adapted layers of rank R in one fused projection, S tokens of one run.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from plait.engines.torch.train.params import Fused
from plait.engines.torch.train.products import PLAIN, Products

Adapters = Sequence[tuple[slice, Fused]]
"""The adapters of one fused projection, each with the rows that it is for."""


class Norm(NamedTuple):
    """An RMS norm over the last dimension, with a frozen weight."""

    weight: torch.Tensor
    eps: float


def norm(x_ND: torch.Tensor, by: Norm) -> torch.Tensor:
    """``x`` normed."""
    return _Norm.apply(x_ND, by)


def linear(
    x_NI: torch.Tensor,
    weight_OI: torch.Tensor,
    bias_O: torch.Tensor | None,
    adapters: Adapters,
    *,
    before: Norm | None = None,
    residual_NO: torch.Tensor | None = None,
    by: Products = PLAIN,
) -> torch.Tensor:
    """``h W^T + bias + adapters + residual`` where h is ``x``, normed if ``before`` is given."""
    marker = _marker(adapters)
    return _Linear.apply(x_NI, marker, residual_NO, weight_OI, bias_O, adapters, before, by)


def gated_linear(
    gate_up_N2J: torch.Tensor,
    weight_DJ: torch.Tensor,
    bias_D: torch.Tensor | None,
    adapters: Adapters,
    *,
    residual_ND: torch.Tensor,
    by: Products = PLAIN,
) -> torch.Tensor:
    """``linear`` of ``silu(gate) · up``. Uses up ``gate_up`` in the backward pass."""
    marker = _marker(adapters)
    return _GatedLinear.apply(gate_up_N2J, marker, residual_ND, weight_DJ, bias_D, adapters, by)


def _marker(adapters: Adapters) -> torch.Tensor | None:
    return adapters[0][1].marker if adapters else None


def pausing(x_ND: torch.Tensor, on_pass: Callable[[], None]) -> torch.Tensor:
    """``x`` itself; ``on_pass`` is called now, and when the backward pass comes by."""
    return _Pausing.apply(x_ND, on_pass)


class _Pausing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_ND, on_pass):
        on_pass()
        ctx.on_pass = on_pass
        return x_ND.view_as(x_ND)

    @staticmethod
    def backward(ctx, dx_ND):
        ctx.on_pass()
        return dx_ND, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_ND, by):
        ctx.save_for_backward(x_ND)
        ctx.by = by
        return _normed(x_ND, by)

    @staticmethod
    def backward(ctx, dy_ND):
        return _norm_gradient(dy_ND, *ctx.saved_tensors, ctx.by), None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_NI, marker, residual_NO, weight_OI, bias_O, adapters, before, by):
        h_NI = x_NI if before is None else _normed(x_NI, before)
        y_NO = by.linear(h_NI, weight_OI, bias_O)
        us = add_adapters(h_NI, y_NO, adapters, by)
        if residual_NO is not None:
            y_NO.add_(residual_NO)
        ctx.adapters, ctx.before, ctx.by = adapters, before, by
        keep_x = bool(adapters) or before is not None
        ctx.save_for_backward(weight_OI, x_NI if keep_x else None, *us)
        return y_NO

    @staticmethod
    def backward(ctx, dy_NO):
        weight_OI, x_NI, *us = ctx.saved_tensors
        adapters, before, by = ctx.adapters, ctx.before, ctx.by
        dx_NI = by.back(dy_NO, weight_OI) if ctx.needs_input_grad[0] else None
        if adapters:
            h_NI = x_NI if before is None else _normed(x_NI, before)
            add_gradients(h_NI, dy_NO, us, adapters, dx_NI, by)
        if before is not None and dx_NI is not None:
            dx_NI = _norm_gradient(dx_NI, x_NI, before)
        dresidual_NO = dy_NO if ctx.needs_input_grad[2] else None
        return dx_NI, None, dresidual_NO, None, None, None, None, None


class _GatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up_N2J, marker, residual_ND, weight_DJ, bias_D, adapters, by):
        gate_NJ, up_NJ = gate_up_N2J.chunk(2, -1)
        x_NJ = by.silu(gate_NJ).mul_(up_NJ)
        y_ND = by.linear(x_NJ, weight_DJ, bias_D)
        us = add_adapters(x_NJ, y_ND, adapters, by)
        y_ND.add_(residual_ND)
        ctx.adapters, ctx.by = adapters, by
        ctx.save_for_backward(gate_up_N2J, weight_DJ, *us)
        return y_ND

    @staticmethod
    def backward(ctx, dy_ND):
        gate_up_N2J, weight_DJ, *us = ctx.saved_tensors
        gate_NJ, up_NJ = gate_up_N2J.chunk(2, -1)
        by = ctx.by
        dx_NJ = by.back(dy_ND, weight_DJ)
        silu_NJ = by.silu(gate_NJ)
        if ctx.adapters:
            add_gradients(silu_NJ * up_NJ, dy_ND, us, ctx.adapters, dx_NJ, by)
        # In place: nothing reads gate and up again, and this is the widest tensor of the block.
        dsilu_NJ = dx_NJ * up_NJ
        torch.mul(dx_NJ, silu_NJ, out=up_NJ)
        by.silu_back_(dsilu_NJ, gate_NJ)
        return gate_up_N2J, None, dy_ND, None, None, None, None


def _normed(x_ND, by: Norm):
    return F.rms_norm(x_ND, by.weight.shape, by.weight, by.eps)


def _norm_gradient(dy_ND, x_ND, by: Norm):
    x_ND = x_ND.float()
    square_N1 = torch.linalg.vecdot(x_ND, x_ND).unsqueeze(-1)
    scale_N1 = square_N1.div_(x_ND.shape[-1]).add_(by.eps).rsqrt_()
    dx_ND = (dy_ND * by.weight).float()
    pull_N1 = torch.linalg.vecdot(dx_ND, x_ND).unsqueeze(-1)
    pull_N1.mul_(scale_N1**3).div_(-x_ND.shape[-1])
    return dx_ND.mul_(scale_N1).addcmul_(x_ND, pull_N1).to(dy_ND.dtype)


def add_adapters(x_NI, y_NO, adapters: Adapters, by: Products):
    """Adds what the adapters make of ``x`` to ``y``; ``x A^T`` of each, scaled."""
    us = []
    for mine, fused in adapters:
        x_SI, y_SO = x_NI[mine], y_NO[mine]
        u_KRS = by.inner(x_SI, fused.a.to(x_SI.dtype)).mul_(fused.scale)
        for i, bt in enumerate(fused.bts):
            by.spread(y_SO[:, fused.columns[i]], u_KRS[fused.rows[i]], bt.to(x_SI.dtype))
        us.append(u_KRS)
    return us


def add_gradients(x_NI, dy_NO, us, adapters: Adapters, dx_NI, by: Products) -> None:
    """Adds each adapter's gradient to its own, and its share of ``dx`` where that is wanted."""
    for (mine, fused), u_KRS in zip(adapters, us, strict=True):
        x_SI = x_NI[mine]
        du_KRS = _inner_gradient(dy_NO[mine], u_KRS, fused, by)
        by.accumulate(fused.da, du_KRS, x_SI)
        if dx_NI is not None:
            by.spread(dx_NI[mine], du_KRS, fused.a.to(x_SI.dtype))


def _inner_gradient(dy_SO, u_KRS, fused: Fused, by: Products):
    """Gradient at ``x A^T``; adds the gradients of the B matrices."""
    du_KRS = torch.empty_like(u_KRS)
    for i, bt in enumerate(fused.bts):
        dy, rows = dy_SO[:, fused.columns[i]], fused.rows[i]
        du_KRS[rows] = by.inner(dy, bt.to(dy.dtype))
        by.accumulate(fused.dbts[i], u_KRS[rows], dy)
    return du_KRS.mul_(fused.scale)
