"""Model: the short forward over a base model's weights, for inference.

It owns the layer arithmetic and nothing else: how keys and values are kept (``attend``), which
adapters are added (``Adapters``) and how matrices are multiplied (``linear``) are the caller's. It
works in place and so without autograd; training has the same arithmetic in ``train.model``.

Shapes: N tokens of any number of sequences, packed; D hidden; H heads; K key-value heads; E head
size.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F

from plait.engines.torch.arch import Arch
from plait.engines.torch.packed import Linear
from plait.engines.torch.weights import Weights

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(layer, q_NHE, k_NKE, v_NKE) -> out_NHE``."""


class Adapters(Protocol):
    """What is added to a fused projection's output."""

    def add(self, layer: int, group: str, x_ND: torch.Tensor, y_NO: torch.Tensor) -> torch.Tensor:
        """``y`` plus the adapters' contribution; may work in place without autograd."""
        ...


class Rope:
    """Rotary tables up to the model's context, computed once."""

    def __init__(self, arch: Arch, device: torch.device, dtype: torch.dtype) -> None:
        position = torch.arange(arch.max_context, dtype=torch.float32)
        angle = torch.outer(position, torch.tensor(arch.inv_freq, dtype=torch.float32))
        self._cos = torch.cat([angle.cos()] * 2, -1).to(device, dtype)
        self._sin = torch.cat([-angle.sin(), angle.sin()], -1).to(device, dtype)

    def at(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``cos_N1E, sin_N1E`` (sine signed for the half swap)."""
        return self._cos[positions_N].unsqueeze(1), self._sin[positions_N].unsqueeze(1)


def rotate_(x_NHE: torch.Tensor, cos_N1E: torch.Tensor, sin_N1E: torch.Tensor) -> None:
    """Rotate heads in place."""
    swapped = x_NHE.roll(x_NHE.shape[-1] // 2, -1)
    x_NHE.mul_(cos_N1E).addcmul_(swapped, sin_N1E)


def forward(
    weights: Weights,
    tokens_N: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    attend: Attend,
    *,
    adapters: Adapters | None = None,
    linear: Linear = F.linear,
    silu: Callable[[torch.Tensor], torch.Tensor] = F.silu,
    on_layer: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Final hidden states ``h_ND`` (normed), to be multiplied by ``weights.head`` where needed."""
    a = weights.arch
    n = tokens_N.shape[0]
    n_rotated = a.n_heads + a.n_kv_heads

    def project(i: int, group: str, x: torch.Tensor, w, bias) -> torch.Tensor:
        y = linear(x, w, bias)
        return y if adapters is None else adapters.add(i, group, x, y)

    x = F.embedding(tokens_N, weights.embed)
    for i, layer in enumerate(weights.layers):
        on_layer()
        h = F.rms_norm(x, (a.hidden,), layer.ln1, a.eps)
        qkv = project(i, "qkv", h, layer.qkv, layer.qkv_bias).view(n, -1, a.head_dim)
        if layer.q_norm is not None:
            heads = qkv[:, : a.n_heads], qkv[:, a.n_heads : n_rotated]
            for part, norm in zip(heads, (layer.q_norm, layer.k_norm), strict=True):
                part.copy_(F.rms_norm(part, (a.head_dim,), norm, a.eps))
        rotate_(qkv[:, :n_rotated], *rope)
        out = attend(i, qkv[:, : a.n_heads], qkv[:, a.n_heads : n_rotated], qkv[:, n_rotated:])
        x.add_(project(i, "o", out.view(n, a.q_size), layer.o, layer.o_bias))
        h = F.rms_norm(x, (a.hidden,), layer.ln2, a.eps)
        gate, up = project(i, "gate_up", h, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        x.add_(project(i, "down", silu(gate).mul_(up), layer.down, layer.down_bias))
    return F.rms_norm(x, (a.hidden,), weights.norm, a.eps)
