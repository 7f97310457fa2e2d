"""Attention: rotary causal attention over a training micro-batch, with its own backward pass.

Packed tokens are laid out right-padded, so that the causal mask alone keeps sequences and padding
apart: a real query never sees a place to its right. A prefix that sequences share is read into each
of them and its output taken from the first; the gradients of its keys and values add up. The G
queries that share a key are rows of one product with it, so keys and values are never repeated.

Shapes: N packed tokens, B sequences, T the longest, H heads = K key-value heads × G, E head size.
"""

import torch
import torch.nn.functional as F

from plait.engines.torch.arch import Arch
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.packing import SHORT


class Attention:
    """One micro-batch's attention; holds what all layers share."""

    def __init__(self, batch: Packed, arch: Arch, rope: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.b, self.t, self.slots_N = batch.n_seqs, batch.longest, batch.slots_N
        self.sources_P = batch.sources_P
        self.k, self.e = arch.n_kv_heads, arch.head_dim
        self.g = arch.n_heads // arch.n_kv_heads
        self.scale = arch.head_dim**-0.5
        self.cos_N1E, self.sin_N1E = rope
        self.mask_TT: torch.Tensor | None = None
        # Whole scores only in fp32: in half precision their softmax would be rounded.
        if self.t <= SHORT and rope[0].dtype == torch.float32:
            future = torch.full((self.t, self.t), -torch.inf, device=batch.tokens_N.device)
            self.mask_TT = future.triu_(1)

    def __call__(self, qkv_NO: torch.Tensor) -> torch.Tensor:
        """``(N, (H + 2K)·E)`` before rotation to ``(N, H·E)``."""
        return _Attention.apply(qkv_NO, self)

    def read(self, x_NO: torch.Tensor) -> torch.Tensor:
        """``(N, X·E)`` to ``(B, X, T, E)``, shared prefixes in every sequence."""
        if self.sources_P is None:
            return self.lay_out(x_NO)
        grid = x_NO.index_select(0, self.sources_P)
        return grid.view(self.b, self.t, -1, self.e).transpose(1, 2)

    def lay_out(self, x_NO: torch.Tensor) -> torch.Tensor:
        """``(N, X·E)`` to ``(B, X, T, E)``, each token once; a view where nothing is padded."""
        if self.slots_N is not None:
            grid = x_NO.new_zeros(self.b * self.t, x_NO.shape[1])
            x_NO = grid.index_copy_(0, self.slots_N, x_NO)
        return x_NO.view(self.b, self.t, -1, self.e).transpose(1, 2)

    def pack(self, x_BXTE: torch.Tensor) -> torch.Tensor:
        """The way back, to ``(N, X, E)``."""
        x_BTXE = x_BXTE.transpose(1, 2).contiguous()
        grid = x_BTXE.view(self.b * self.t, -1, self.e)
        return grid if self.slots_N is None else grid.index_select(0, self.slots_N)

    def unread(self, d_BXTE: torch.Tensor) -> torch.Tensor:
        """The gradient of ``read``: to ``(N, X, E)``, summed over the readers of a prefix."""
        if self.sources_P is None:
            return self.pack(d_BXTE)
        d_PXE = d_BXTE.transpose(1, 2).reshape(self.b * self.t, -1, self.e)
        summed = d_PXE.new_zeros(len(self.slots_N), *d_PXE.shape[1:])
        return summed.index_add_(0, self.sources_P, d_PXE)


class _Attention(torch.autograd.Function):
    """Keeps its input alone: to lay it out and to score again costs less than to hold every layer's
    padded queries, keys, values and scores, which are most of a micro-batch's memory."""

    @staticmethod
    def forward(ctx, qkv_NO, a: Attention):
        ctx.a = a
        ctx.save_for_backward(qkv_NO)
        q_BHTE, k_BKTE, v_BKTE = _laid_out(qkv_NO, a)
        if a.mask_TT is None:
            return a.pack(_fused(q_BHTE, k_BKTE, v_BKTE, a)).flatten(1)
        q, k, v = _by_key_head(q_BHTE, k_BKTE, v_BKTE, a)
        out = torch.bmm(_probabilities(q, k, a), v)
        return a.pack(out.view(a.b, a.k * a.g, a.t, a.e)).flatten(1)

    @staticmethod
    def backward(ctx, do_NO):
        a, (qkv_NO,) = ctx.a, ctx.saved_tensors
        q_BHTE, k_BKTE, v_BKTE = _laid_out(qkv_NO, a)
        do_BHTE = a.lay_out(do_NO)
        if a.mask_TT is None:
            with torch.enable_grad():
                ins = [x.detach().requires_grad_() for x in (q_BHTE, k_BKTE, v_BKTE)]
                out_BHTE = _fused(*ins, a)
            dq, dk, dv = torch.autograd.grad(out_BHTE, ins, do_BHTE)
        else:
            q, k, v = _by_key_head(q_BHTE, k_BKTE, v_BKTE, a)
            p = _probabilities(q, k, a)
            do = do_BHTE.reshape(q.shape)
            dv = torch.bmm(p.transpose(1, 2), do)
            dp = torch.bmm(do, v.transpose(1, 2))
            ds = torch.ops.aten._softmax_backward_data.out(dp, p, -1, p.dtype, grad_input=dp)
            dq = torch.bmm(ds, k).mul_(a.scale).view(a.b, a.k * a.g, a.t, a.e)
            dk = torch.bmm(ds.transpose(1, 2), q).view(a.b, a.k, a.t, a.e)
            dv = dv.view(a.b, a.k, a.t, a.e)
        n, n_q = len(do_NO), a.k * a.g
        dqkv = do_NO.new_empty(n, a.k * (a.g + 2), a.e)
        rotated(a.pack(dq), a.cos_N1E, a.sin_N1E.neg(), out=dqkv[:, :n_q])
        rotated(a.unread(dk), a.cos_N1E, a.sin_N1E.neg(), out=dqkv[:, n_q : n_q + a.k])
        dqkv[:, n_q + a.k :] = a.unread(dv)
        return dqkv.view(n, -1), None


def _laid_out(qkv_NO, a: Attention):
    """Rotated queries ``(B, H, T, E)`` and keys, and values ``(B, K, T, E)``."""
    heads, n_rotated = qkv_NO.view(len(qkv_NO), -1, a.e), a.k * (a.g + 1)
    qk_NXE = rotated(heads[:, :n_rotated], a.cos_N1E, a.sin_N1E)
    q_BHTE, k_BKTE = a.read(qk_NXE.flatten(1)).split((a.k * a.g, a.k), 1)
    return q_BHTE, k_BKTE, a.read(heads[:, n_rotated:].flatten(1))


def _fused(q_BHTE, k_BKTE, v_BKTE, a: Attention):
    return F.scaled_dot_product_attention(
        q_BHTE, k_BKTE, v_BKTE, is_causal=True, enable_gqa=a.g > 1
    )


def _by_key_head(q_BHTE, k_BKTE, v_BKTE, a: Attention):
    """Scaled queries ``(BK, GT, E)``; keys and values ``(BK, T, E)``."""
    q = torch.mul(q_BHTE, a.scale).reshape(a.b * a.k, a.g * a.t, a.e)
    k, v = (x.reshape(-1, a.t, a.e) for x in (k_BKTE, v_BKTE))
    return q, k, v


def _probabilities(q, k, a: Attention):
    """What each query reads of each place, ``(BK, GT, T)``."""
    mask = a.mask_TT.repeat(a.g, 1).expand(len(q), -1, -1)
    scores = torch.baddbmm(mask, q, k.transpose(1, 2))
    return torch.softmax(scores, -1, out=scores)


def rotated(x_NXE, cos_N1E, sin_N1E, out=None):
    """``model.rotate`` by halves, without a rolled copy; into ``out`` if given."""
    out = torch.empty(x_NXE.shape, dtype=x_NXE.dtype, device=x_NXE.device) if out is None else out
    half = x_NXE.shape[-1] // 2
    low, high = slice(None, half), slice(half, None)
    for to, other in ((low, high), (high, low)):
        part = torch.mul(x_NXE[..., to], cos_N1E[..., to], out=out[..., to])
        part.addcmul_(x_NXE[..., other], sin_N1E[..., to])
    return out
