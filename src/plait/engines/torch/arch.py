"""Arch: the numbers of a Llama-, Qwen2- or Qwen3-shaped model, read from its Hugging Face config.

Which checkpoints these are is ``models.shape``'s to say; every other goes through ``fallback``, and
what both have in common for the engines are ``Sizes``. Rotary frequencies are computed here because
they are the one place where the families' configs differ in form (plain, ``linear`` and ``llama3``
scaling).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from plait.core.errors import ModelError
from plait.core.runs import ALL_LINEAR, LoraSpec
from plait.models.shape import why_not_own


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One product that adapters add to: a linear layer of the checkpoint, or several fused."""

    layer: int
    group: str
    n_in: int
    modules: tuple[tuple[str, int], ...]
    """Name and output size of each linear layer, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the engines need to know of any decoder."""

    vocab_size: int
    hidden: int
    inter: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_context: int

    @property
    def q_size(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def order(self) -> str:
        """Names the order of the flat buffers (``params.lay_out``) in files of moments: raise it
        when that changes."""
        return "layer-projection-A-B-1"

    @property
    def paths(self) -> frozenset[str] | None:
        """Dotted names of the linear layers; ``None``: those of a Llama."""
        return None

    def chosen(self, spec: LoraSpec) -> LoraSpec:
        """``spec`` with the targets that it means here."""
        return spec

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of linear layers that an adapter can have."""
        return ALL_LINEAR


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
