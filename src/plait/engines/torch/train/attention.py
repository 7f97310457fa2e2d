"""Attention: rotary causal attention over a training micro-batch, with its own backward pass.

Packed tokens are laid out right-padded, so that a causal mask alone keeps sequences and padding
apart: a real query never sees a place to its right. A prefix that sequences share is read by each
of them, but its own queries are laid out once (``rows``); the gradients of its keys and values add
up. The G queries that share a key are rows of one product with it, so keys and values are never
repeated.

Shapes: N packed tokens; R rows of up to C queries and T keys (a row is a sequence where no prefix
is shared); H heads = K key-value heads × G, E head size.
"""

import torch
import torch.nn.functional as F

from plait.engines.torch import exact
from plait.engines.torch.arch import Arch
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.packing import SHORT


class Attention:
    """One micro-batch's attention; holds what all layers share."""

    def __init__(
        self,
        batch: Packed,
        arch: Arch,
        rope: tuple[torch.Tensor, torch.Tensor],
        *,
        exact: bool = False,
    ) -> None:
        """``exact``: with the sampler's bits; the batch is packed in whole vectors of keys."""
        self.exact = exact
        self.r, self.c, self.t = batch.n_rows, batch.width, batch.longest
        self.slots_N, self.sources_P = batch.slots_N, batch.sources_P
        self.queries_Q, self.whole = batch.queries_Q, batch.places_RC is None
        self.k, self.e = arch.n_kv_heads, arch.head_dim
        self.g = arch.n_heads // arch.n_kv_heads
        self.scale = arch.head_dim**-0.5
        self.cos_N1E, self.sin_N1E = rope
        # Whole scores only in fp32: in half precision their softmax would be rounded.
        self.is_short = self.t <= SHORT and rope[0].dtype == torch.float32
        places_RC = batch.places_RC
        if places_RC is None:
            places_RC = torch.arange(self.c, device=batch.tokens_N.device)[None]
        self.places_RC = places_RC
        if self.is_short or not self.whole:  # else the kernel knows what causal means
            beyond = torch.arange(self.t, device=places_RC.device) > places_RC.unsqueeze(-1)
            mask_RCT = torch.zeros(beyond.shape, dtype=rope[0].dtype, device=beyond.device)
            mask_RCT.masked_fill_(beyond, -torch.inf)
            by_head = self.is_short and not self.whole
            self.mask_RCT = self._by_key_head(mask_RCT) if by_head else mask_RCT

    def __call__(self, qkv_NO: torch.Tensor) -> torch.Tensor:
        """``(N, (H + 2K)·E)`` before rotation to ``(N, H·E)``."""
        return _Attention.apply(qkv_NO, self)

    def read(self, x_NO: torch.Tensor) -> torch.Tensor:
        """``(N, X·E)`` to the keys' ``(R, X, T, E)``, shared prefixes in every row."""
        if self.sources_P is None:
            return self.lay_out(x_NO)
        grid = x_NO.index_select(0, self.sources_P)
        return grid.view(self.r, self.t, -1, self.e).transpose(1, 2)

    def ask(self, x_NO: torch.Tensor) -> torch.Tensor:
        """``(N, X·E)`` to the queries' ``(R, X, C, E)``."""
        if self.queries_Q is None:
            return self.lay_out(x_NO)
        grid = x_NO.index_select(0, self.queries_Q)
        return grid.view(self.r, self.c, -1, self.e).transpose(1, 2)

    def lay_out(self, x_NO: torch.Tensor) -> torch.Tensor:
        """``(N, X·E)`` to ``(R, X, C, E)``, zeros where there is padding; a view where there is
        none."""
        if self.slots_N is not None:
            grid = x_NO.new_zeros(self.r * self.c, x_NO.shape[1])
            x_NO = grid.index_copy_(0, self.slots_N, x_NO)
        return x_NO.view(self.r, self.c, -1, self.e).transpose(1, 2)

    def pack(self, x_RXCE: torch.Tensor) -> torch.Tensor:
        """The way back, to ``(N, X, E)``."""
        x_RCXE = x_RXCE.transpose(1, 2).contiguous()
        grid = x_RCXE.view(self.r * self.c, -1, self.e)
        return grid if self.slots_N is None else grid.index_select(0, self.slots_N)

    def unread(self, d_RXTE: torch.Tensor) -> torch.Tensor:
        """The gradient of ``read``: to ``(N, X, E)``, summed over the readers of a prefix."""
        if self.sources_P is None:
            return self.pack(d_RXTE)
        d_PXE = d_RXTE.transpose(1, 2).reshape(self.r * self.t, -1, self.e)
        summed = d_PXE.new_zeros(len(self.slots_N), *d_PXE.shape[1:])
        return summed.index_add_(0, self.sources_P, d_PXE)

    def _by_key_head(self, mask_RCT: torch.Tensor) -> torch.Tensor:
        """A copy for each key-value head and each of its queries, ``(RK, GC, T)``."""
        shape = (len(mask_RCT), self.k, self.g, self.c, self.t)
        return mask_RCT[:, None, None].expand(shape).reshape(-1, self.g * self.c, self.t)


class _Attention(torch.autograd.Function):
    """Keeps its input alone: to lay it out and to score again costs less than to hold every layer's
    padded queries, keys, values and scores, which are most of a micro-batch's memory."""

    @staticmethod
    def forward(ctx, qkv_NO, a: Attention):
        ctx.a = a
        ctx.save_for_backward(qkv_NO)
        q_RHCE, k_RKTE, v_RKTE = _laid_out(qkv_NO, a)
        if a.exact:
            return a.pack(_exact(q_RHCE, k_RKTE, v_RKTE, a)).flatten(1)
        if not a.is_short:
            return a.pack(_fused(q_RHCE, k_RKTE, v_RKTE, a)).flatten(1)
        q, k, v = _by_key_head(q_RHCE, k_RKTE, v_RKTE, a)
        out = torch.bmm(_probabilities(q, k, a), v)
        return a.pack(out.view(a.r, a.k * a.g, a.c, a.e)).flatten(1)

    @staticmethod
    def backward(ctx, do_NO):
        a, (qkv_NO,) = ctx.a, ctx.saved_tensors
        q_RHCE, k_RKTE, v_RKTE = _laid_out(qkv_NO, a)
        do_RHCE = a.lay_out(do_NO)
        if not a.is_short:
            with torch.enable_grad():
                ins = [x.detach().requires_grad_() for x in (q_RHCE, k_RKTE, v_RKTE)]
                out_RHCE = _fused(*ins, a)
            dq, dk, dv = torch.autograd.grad(out_RHCE, ins, do_RHCE)
        else:
            q, k, v = _by_key_head(q_RHCE, k_RKTE, v_RKTE, a)
            p = _probabilities(q, k, a)
            do = do_RHCE.reshape(q.shape)
            dv = torch.bmm(p.transpose(1, 2), do)
            dp = torch.bmm(do, v.transpose(1, 2))
            ds = torch.ops.aten._softmax_backward_data.out(dp, p, -1, p.dtype, grad_input=dp)
            dq = torch.bmm(ds, k).mul_(a.scale).view(a.r, a.k * a.g, a.c, a.e)
            dk = torch.bmm(ds.transpose(1, 2), q).view(a.r, a.k, a.t, a.e)
            dv = dv.view(a.r, a.k, a.t, a.e)
        n, n_q = len(do_NO), a.k * a.g
        dqkv = do_NO.new_empty(n, a.k * (a.g + 2), a.e)
        rotated(a.pack(dq), a.cos_N1E, a.sin_N1E.neg(), out=dqkv[:, :n_q])
        rotated(a.unread(dk), a.cos_N1E, a.sin_N1E.neg(), out=dqkv[:, n_q : n_q + a.k])
        dqkv[:, n_q + a.k :] = a.unread(dv)
        return dqkv.view(n, -1), None


def _laid_out(qkv_NO, a: Attention):
    """Rotated queries ``(R, H, C, E)`` and keys, and values ``(R, K, T, E)``."""
    heads, n_q = qkv_NO.view(len(qkv_NO), -1, a.e), a.k * a.g
    qk_NXE = rotated(heads[:, : n_q + a.k], a.cos_N1E, a.sin_N1E)
    q, k, v = qk_NXE[:, :n_q], qk_NXE[:, n_q:], heads[:, n_q + a.k :]
    return a.ask(q.flatten(1)), a.read(k.flatten(1)), a.read(v.flatten(1))


def _fused(q_RHCE, k_RKTE, v_RKTE, a: Attention):
    mask = None if a.whole else a.mask_RCT.unsqueeze(1)
    return F.scaled_dot_product_attention(
        q_RHCE, k_RKTE, v_RKTE, attn_mask=mask, is_causal=a.whole, enable_gqa=a.g > 1
    )


def _exact(q_RHCE, k_RKTE, v_RKTE, a: Attention):
    """As the sampler does it: short rows all at once, long ones one after the other."""
    if a.is_short:
        q, k, v = _by_key_head(q_RHCE, k_RKTE, v_RKTE, a)
        return exact.attend(q, k, v, _mask(a)).reshape(a.r, -1, a.c, a.e)
    q_RKGCE = q_RHCE.reshape(a.r, a.k, a.g, a.c, a.e)
    places_RC = a.places_RC.expand(a.r, -1)
    rows = zip(q_RKGCE, k_RKTE, v_RKTE, places_RC, strict=True)
    return torch.stack([exact.causal(*row) for row in rows]).flatten(1, 2)


def _by_key_head(q_RHCE, k_RKTE, v_RKTE, a: Attention):
    """Scaled queries ``(RK, GC, E)``; keys and values ``(RK, T, E)``."""
    q = torch.mul(q_RHCE, a.scale).reshape(a.r * a.k, a.g * a.c, a.e)
    k, v = (x.reshape(-1, a.t, a.e) for x in (k_RKTE, v_RKTE))
    return q, k, v


def _probabilities(q, k, a: Attention):
    """What each query reads of each place, ``(RK, GC, T)``."""
    scores = torch.baddbmm(_mask(a), q, k.transpose(1, 2))
    return torch.softmax(scores, -1, out=scores)


def _mask(a: Attention):
    """Minus infinity where a query sees nothing, ``(RK, GC, T)``."""
    if not a.whole:
        return a.mask_RCT
    return a.mask_RCT[0].repeat(a.g, 1).expand(a.r * a.k, -1, -1)


def rotated(x_NXE, cos_N1E, sin_N1E, out=None):
    """``model.rotate`` by halves, without a rolled copy; into ``out`` if given."""
    out = torch.empty(x_NXE.shape, dtype=x_NXE.dtype, device=x_NXE.device) if out is None else out
    half = x_NXE.shape[-1] // 2
    low, high = slice(None, half), slice(half, None)
    for to, other in ((low, high), (high, low)):
        part = torch.mul(x_NXE[..., to], cos_N1E[..., to], out=out[..., to])
        part.addcmul_(x_NXE[..., other], sin_N1E[..., to])
    return out
