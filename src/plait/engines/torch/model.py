"""Model: the short forward over a base model's weights that rollout and training share.

It owns the layer arithmetic and nothing else: how keys and values are kept (``attend``) and which
adapters are added (``Adapters``) are the caller's. Works with autograd and without.

Shapes: N tokens of any number of sequences, packed; D hidden; H heads; K key-value heads; E head
size.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F

from plait.engines.torch.arch import Arch
from plait.engines.torch.weights import Weights

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(layer, q_NHE, k_NKE, v_NKE) -> out_NHE``."""

GROUPS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Fused projections and the checkpoint's linear layers within each, in order."""


class Adapters(Protocol):
    """What is added to a fused projection's output."""

    def add(self, layer: int, group: str, x_ND: torch.Tensor, y_NO: torch.Tensor) -> torch.Tensor:
        """``y`` plus the adapters' contribution; may work in place without autograd."""
        ...


def group_sizes(arch: Arch) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Per fused projection: input size, and output size of each layer in ``GROUPS``' order."""
    return {
        "qkv": (arch.hidden, (arch.q_size, arch.kv_size, arch.kv_size)),
        "o": (arch.q_size, (arch.hidden,)),
        "gate_up": (arch.hidden, (arch.inter, arch.inter)),
        "down": (arch.inter, (arch.hidden,)),
    }


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


def rotate(x_NHE: torch.Tensor, cos_N1E: torch.Tensor, sin_N1E: torch.Tensor) -> torch.Tensor:
    half = x_NHE.shape[-1] // 2
    return x_NHE * cos_N1E + x_NHE.roll(half, -1) * sin_N1E


def forward(
    weights: Weights,
    tokens_N: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    attend: Attend,
    adapters: Adapters | None = None,
) -> torch.Tensor:
    """Final hidden states ``h_ND`` (normed), to be multiplied by ``weights.head`` where needed."""
    a = weights.arch
    n = tokens_N.shape[0]
    cos, sin = rope

    def project(i: int, group: str, x: torch.Tensor, w, bias) -> torch.Tensor:
        y = F.linear(x, w, bias)
        return y if adapters is None else adapters.add(i, group, x, y)

    x = F.embedding(tokens_N, weights.embed)
    for i, layer in enumerate(weights.layers):
        h = F.rms_norm(x, (a.hidden,), layer.ln1, a.eps)
        qkv = project(i, "qkv", h, layer.qkv, layer.qkv_bias)
        q, k, v = qkv.split((a.q_size, a.kv_size, a.kv_size), -1)
        q, k = q.view(n, a.n_heads, a.head_dim), k.view(n, a.n_kv_heads, a.head_dim)
        if layer.q_norm is not None:
            q = F.rms_norm(q, (a.head_dim,), layer.q_norm, a.eps)
            k = F.rms_norm(k, (a.head_dim,), layer.k_norm, a.eps)
        out = attend(
            i, rotate(q, cos, sin), rotate(k, cos, sin), v.view(n, a.n_kv_heads, a.head_dim)
        )
        x = x + project(i, "o", out.reshape(n, a.q_size), layer.o, layer.o_bias)
        h = F.rms_norm(x, (a.hidden,), layer.ln2, a.eps)
        gate, up = project(i, "gate_up", h, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        x = x + project(i, "down", F.silu(gate) * up, layer.down, layer.down_bias)
    return F.rms_norm(x, (a.hidden,), weights.norm, a.eps)
