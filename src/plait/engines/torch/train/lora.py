"""Lora: one run's adapter added to fused projections, with gradients.

Per fused projection one product with the concatenated A matrices, then one small product per layer,
added in place into its columns. Only the small ``x A^T`` is kept beside ``x`` for the backward pass.

Shapes: N tokens, I inputs, O outputs of the fused projection, R rank, K adapted layers in it.
"""

import torch

from plait.engines.torch.train.params import Fused, RunParams


class TrainAdapters:
    """``model.Adapters`` for one run whose parameters require a gradient."""

    def __init__(self, params: RunParams) -> None:
        self._fused = params.fused

    def add(self, layer: int, group: str, x_NI: torch.Tensor, y_NO: torch.Tensor) -> torch.Tensor:
        fused = self._fused.get((layer, group))
        if fused is None:
            return y_NO
        return _Add.apply(x_NI, y_NO, fused, fused.a, *fused.bs)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_NI, y_NO, fused: Fused, a_KRI, *bs_OR):
        u_NKR = (x_NI @ a_KRI.T).mul_(fused.scale)
        r = bs_OR[0].shape[1]
        for i, b in enumerate(bs_OR):
            y_NO[:, _columns(fused, i)].addmm_(u_NKR[:, i * r : (i + 1) * r], b.T)
        ctx.fused = fused
        ctx.save_for_backward(x_NI, u_NKR, a_KRI, *bs_OR)
        ctx.mark_dirty(y_NO)
        return y_NO

    @staticmethod
    def backward(ctx, dy_NO):
        x_NI, u_NKR, a_KRI, *bs_OR = ctx.saved_tensors
        r = bs_OR[0].shape[1]
        du_NKR = torch.empty_like(u_NKR)
        dbs = []
        for i, b in enumerate(bs_OR):
            span, dy = slice(i * r, (i + 1) * r), dy_NO[:, _columns(ctx.fused, i)]
            torch.mm(dy, b, out=du_NKR[:, span])
            dbs.append(dy.T @ u_NKR[:, span])
        du_NKR.mul_(ctx.fused.scale)
        dx_NI = du_NKR @ a_KRI if ctx.needs_input_grad[0] else None
        return dx_NI, dy_NO, None, du_NKR.T @ x_NI, *dbs


def _columns(fused: Fused, i: int) -> slice:
    return slice(fused.columns[i], fused.columns[i] + fused.bs[i].shape[0])
