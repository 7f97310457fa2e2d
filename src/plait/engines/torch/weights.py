"""Weights: one fused, memory-mapped copy of a base model, shared by every worker on the machine.

A checkpoint is rewritten once into a single safetensors file whose projections are already fused
(``qkv``, ``gate_up``); workers map that file, so its pages are in memory once however many
processes use them. Frozen: nothing ever writes to these tensors.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from plait.core.errors import ModelError
from plait.engines.torch.arch import Arch, read_arch
from plait.models.cache import build_once, cache_root

LAYOUT = "fused-1"
"""Part of the cached file's name: raise it when the layout changes."""

FUSED = "fused.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder block; biases and head norms are ``None`` where the family has none."""

    ln1: torch.Tensor
    ln2: torch.Tensor
    qkv: torch.Tensor
    o: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    o_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A base model ready to run. ``head`` is ``embed`` where the two are tied."""

    arch: Arch
    embed: torch.Tensor
    head: torch.Tensor
    norm: torch.Tensor
    layers: tuple[Layer, ...]

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype


def load_weights(
    model_dir: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    cache: Path | None = None,
) -> Weights:
    """Map the fused copy of ``model_dir``, making it first if need be.

    ModelError if the directory is not a supported checkpoint.
    """
    arch = read_arch(model_dir)
    file = fused_file(model_dir, arch, dtype=dtype, cache=cache)
    with safe_open(str(file), framework="pt", device=device) as f:
        t = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - not a mapping
    layers = []
    for i in range(arch.n_layers):
        prefix = f"{i}."
        layers.append(Layer(**{k[len(prefix) :]: v for k, v in t.items() if k.startswith(prefix)}))
    embed = t["embed"]
    return Weights(
        arch=arch, embed=embed, head=t.get("head", embed), norm=t["norm"], layers=tuple(layers)
    )


def fused_file(
    model_dir: str | Path, arch: Arch, *, dtype: torch.dtype, cache: Path | None = None
) -> Path:
    """Path of the fused file, written under a lock and renamed into place on first use."""
    source = Path(model_dir).resolve()
    stamp = [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in _shards(source)]
    text = json.dumps([LAYOUT, str(source), str(dtype), stamp])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    place = cache_root(cache) / "weights" / f"{source.name}-{LAYOUT}-{digest}"

    def build(out: Path) -> None:
        save_file(_fuse(source, arch, dtype), str(out / FUSED))

    return build_once(place, build) / FUSED


def _shards(source: Path) -> list[Path]:
    shards = sorted(source.glob("*.safetensors"))
    if not shards:
        raise ModelError(f"{source} has no *.safetensors weights: convert the checkpoint first")
    return shards


def _fuse(source: Path, arch: Arch, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    raw: dict[str, torch.Tensor] = {}
    for shard in _shards(source):
        with safe_open(str(shard), framework="pt") as f:
            raw.update({name: f.get_tensor(name) for name in f.keys()})  # noqa: SIM118

    def take(*names: str) -> torch.Tensor:
        missing = [n for n in names if n not in raw]
        if missing:
            raise ModelError(f"{source} lacks the tensor {missing[0]}")
        return torch.cat([raw[n] for n in names]).to(dtype).contiguous()

    out = {"embed": take("model.embed_tokens.weight"), "norm": take("model.norm.weight")}
    if not arch.tied:
        out["head"] = take("lm_head.weight")
    for i in range(arch.n_layers):
        p = f"model.layers.{i}."
        a, m = p + "self_attn.", p + "mlp."
        out[f"{i}.ln1"] = take(p + "input_layernorm.weight")
        out[f"{i}.ln2"] = take(p + "post_attention_layernorm.weight")
        out[f"{i}.qkv"] = take(*(f"{a}{x}_proj.weight" for x in "qkv"))
        out[f"{i}.o"] = take(a + "o_proj.weight")
        out[f"{i}.gate_up"] = take(m + "gate_proj.weight", m + "up_proj.weight")
        out[f"{i}.down"] = take(m + "down_proj.weight")
        if arch.qkv_bias:
            out[f"{i}.qkv_bias"] = take(*(f"{a}{x}_proj.bias" for x in "qkv"))
        if arch.o_bias:
            out[f"{i}.o_bias"] = take(a + "o_proj.bias")
        if arch.mlp_bias:
            out[f"{i}.gate_up_bias"] = take(m + "gate_proj.bias", m + "up_proj.bias")
            out[f"{i}.down_bias"] = take(m + "down_proj.bias")
        if arch.qk_norm:
            out[f"{i}.q_norm"] = take(a + "q_norm.weight")
            out[f"{i}.k_norm"] = take(a + "k_norm.weight")
    return out
