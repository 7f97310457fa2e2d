"""Arch: the numbers of a Llama-, Qwen2- or Qwen3-shaped model, read from its Hugging Face config.

Which checkpoints these are is ``models.shape``'s to say; every other goes through ``fallback``.
Rotary frequencies are computed here because they are the one place where the families' configs
differ in form (plain, ``linear`` and ``llama3`` scaling).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from plait.core.errors import ModelError
from plait.core.runs import HEAD
from plait.engines.torch.sizes import Site, Sizes
from plait.models.shape import why_not_own

GROUPS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""A block's fused projections and the checkpoint's linear layers within each, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch(Sizes):
    """Shape of a decoder of our own. ``qkv_bias`` is Qwen2's, ``qk_norm`` Qwen3's."""

    eps: float
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    inv_freq: tuple[float, ...]

    @property
    def matmul_params(self) -> int:
        """Weights that take part in a token's matrix products (2 FLOPs each), head included."""
        layer = self.hidden * (self.q_size + 2 * self.kv_size) + self.q_size * self.hidden
        layer += 3 * self.hidden * self.inter
        return self.n_layers * layer + self.vocab_size * self.hidden

    @property
    def sites(self) -> tuple[Site, ...]:
        """The fused projections of each block, and the head."""
        found = [
            Site(
                layer=layer,
                group=group,
                n_in=n_in,
                modules=tuple(zip(GROUPS[group], outs, strict=True)),
            )
            for layer in range(self.n_layers)
            for group, (n_in, outs) in group_sizes(self).items()
        ]
        layer, group = head_place(self)
        modules = ((HEAD, self.vocab_size),)
        return (*found, Site(layer=layer, group=group, n_in=self.hidden, modules=modules))


def group_sizes(arch: Arch) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Per fused projection: input size, and output size of each layer in ``GROUPS``' order."""
    return {
        "qkv": (arch.hidden, (arch.q_size, arch.kv_size, arch.kv_size)),
        "o": (arch.q_size, (arch.hidden,)),
        "gate_up": (arch.hidden, (arch.inter, arch.inter)),
        "down": (arch.inter, (arch.hidden,)),
    }


def head_place(arch: Arch) -> tuple[int, str]:
    """``(layer, group)`` of the head: a layer behind the last, and a projection by itself."""
    return arch.n_layers, HEAD


def read_arch(model_dir: str | Path) -> Arch:
    """Read ``config.json``; ModelError if our own forward cannot run the model."""
    file = Path(model_dir) / "config.json"
    if not file.is_file():
        raise ModelError(f"{model_dir} has no config.json: give a Hugging Face model directory")
    c: dict[str, Any] = json.loads(file.read_text())
    if why := why_not_own(c):
        raise ModelError(f"{model_dir} {why}: our own forward cannot run it")
    names = c["architectures"]
    qwen2, qwen3 = names[0].startswith("Qwen2"), names[0].startswith("Qwen3")
    heads = int(c["num_attention_heads"])
    head_dim = int(c.get("head_dim") or c["hidden_size"] // heads)
    bias = bool(c.get("attention_bias", False))
    return Arch(
        vocab_size=int(c["vocab_size"]),
        hidden=int(c["hidden_size"]),
        inter=int(c["intermediate_size"]),
        n_layers=int(c["num_hidden_layers"]),
        n_heads=heads,
        n_kv_heads=int(c.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        eps=float(c.get("rms_norm_eps", 1e-6)),
        max_context=int(c["max_position_embeddings"]),
        tied=bool(c.get("tie_word_embeddings", False)),
        qkv_bias=bias or qwen2,
        o_bias=bias,
        mlp_bias=bool(c.get("mlp_bias", False)),
        qk_norm=qwen3,
        inv_freq=_inv_freq(c, head_dim),
    )


def _inv_freq(c: dict[str, Any], head_dim: int) -> tuple[float, ...]:
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or c.get("rope_theta") or 10000.0)
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    freq = 1.0 / (theta**exponent)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "linear":
        freq = freq / float(rope["factor"])
    elif kind == "llama3":
        freq = _llama3(freq, rope)
    return tuple(freq.tolist())


def _llama3(freq: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1's scaling: long wavelengths divided by ``factor``, a smooth band between."""
    factor, old = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    wave = 2 * math.pi / freq
    smooth = ((old / wave - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * freq / factor + smooth * freq
