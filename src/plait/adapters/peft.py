"""PEFT files: a LoRA adapter as ``transformers`` + ``peft`` read and write it.

``adapter_config.json`` and ``adapter_model.safetensors``. Every tensor of a file must belong to a
linear layer of the model: an adapter whose names do not match is refused, never silently ignored.
Where the head is among them, ``peft`` saves the base model's own beside its pair; such a copy is
not read, but must be what it says.

Shapes: R rank; A is ``(R, in)``, B is ``(out, R)``; the update is ``alpha / R · B A``.
"""

import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from plait.core.errors import ModelError, StoreError
from plait.core.runs import ALL_LINEAR, HEAD, MLP, LoraSpec

Pair = tuple[torch.Tensor, torch.Tensor]
Key = tuple[int, str]
"""``(layer, module)`` such as ``(3, "q_proj")``. Other names are the module's whole path; our own
forward counts the head as a layer behind the last."""

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_NAME = re.compile(
    r"base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])\.weight"
)
_PATH = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_NUMBER = re.compile(r"\.(\d+)\.")
_HEAD_COPY = f"base_model.model.{HEAD}.base_layer.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter in memory: its shape and an (A, B) pair for every module it changes."""

    spec: LoraSpec
    pairs: dict[Key, Pair]


def write_adapter(path: str | Path, adapter: Adapter, *, base_model: str) -> None:
    """Write the adapter into the existing directory ``path`` and flush it to disk."""
    folder = Path(path)
    tensors = {}
    for (layer, module), pair in adapter.pairs.items():
        block = "mlp" if module in MLP else "self_attn"
        place = f"model.layers.{layer}.{block}.{module}" if module in ALL_LINEAR else module
        stem = f"base_model.model.{place}.lora_"
        for letter, tensor in zip("AB", pair, strict=True):
            tensors[f"{stem}{letter}.weight"] = tensor.detach().cpu().contiguous()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": adapter.spec.rank,
        "lora_alpha": adapter.spec.alpha,
        "target_modules": sorted(adapter.spec.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    write_durably(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_durably(folder / CONFIG, json.dumps(config, indent=2).encode())


def read_adapter(
    path: str | Path,
    *,
    n_layers: int,
    paths: Collection[str] | None = None,
    head_VD: torch.Tensor | None = None,
) -> Adapter:
    """Read an adapter directory; ModelError if it is none or names modules that do not exist, or
    brings a copy of the base model's head that is not ``head_VD``.

    ``paths`` are the whole names of the base model's linear layers; ``None``: a Llama's.
    """
    folder = Path(path)
    try:
        config = json.loads((folder / CONFIG).read_text())
        tensors = load_file(str(folder / WEIGHTS))
    except FileNotFoundError as e:
        raise ModelError(f"{folder} is no PEFT adapter: {e.filename} is missing") from e
    except (SafetensorError, ValueError) as e:
        raise ModelError(f"the adapter in {folder} cannot be read ({e}): save it again") from e
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{folder} holds a {config.get('peft_type')} adapter; only LORA is known")
    for key in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save"):
        if config.get(key):
            raise ModelError(f"{folder} sets {key}, which is not supported")
    copy_VD = tensors.pop(_HEAD_COPY, None)
    if copy_VD is not None and not (head_VD is not None and _same(copy_VD, head_VD)):
        raise ModelError(
            f"{folder}: {_HEAD_COPY} is not the base model's: load the adapter with the model that "
            f"it was trained on"
        )
    halves: dict[Key, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found = _key(name, n_layers) if paths is None else _key_in(paths, name)
        if found is None:
            raise ModelError(f"{folder}: {name} matches no linear layer of the base model")
        halves.setdefault(found[0], {})[found[1]] = tensor.float()
    broken = [k for k, v in halves.items() if len(v) != 2]
    if broken or not halves:
        raise ModelError(f"{folder} lacks half of a LoRA pair: {broken or 'it is empty'}")
    spec = LoraSpec(
        rank=int(config["r"]),
        alpha=float(config["lora_alpha"]),
        targets=tuple(sorted({module.rpartition(".")[2] for _, module in halves})),
    )
    return Adapter(spec=spec, pairs={k: (v["A"], v["B"]) for k, v in sorted(halves.items())})


def _key(name: str, n_layers: int) -> tuple[Key, str] | None:
    """A tensor's key and half by its name, in a Llama-shaped model."""
    match = _PATH.fullmatch(name)
    if match and match[1] == HEAD:
        return (n_layers, HEAD), match[2]
    match = _NAME.fullmatch(name)
    if not match or int(match[1]) >= n_layers or match[2] not in ALL_LINEAR:
        return None
    return (int(match[1]), match[2]), match[3]


def _key_in(paths: Collection[str], name: str) -> tuple[Key, str] | None:
    """The same among linear layers of these names."""
    match = _PATH.fullmatch(name)
    if not match or match[1] not in paths:
        return None
    return (layer_of(match[1]), match[1]), match[2]


def layer_of(path: str) -> int:
    """The block that a module is in by its whole name; 0 where it is in none."""
    match = _NUMBER.search(path)
    return int(match[1]) if match else 0


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if the two are equal in the coarser of their types."""
    coarser = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
    equal: bool = torch.equal(a.to(coarser), b.to("cpu", coarser))
    return equal


def write_durably(file: Path, data: bytes) -> None:
    """Write ``file`` and wait for the disk; StoreError when the disk is full or read-only."""
    try:
        with file.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as e:
        raise StoreError(f"cannot write {file}: {e.strerror}; free space, then resume") from e
