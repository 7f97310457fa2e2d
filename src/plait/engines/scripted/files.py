"""Checkpoints of the toy policy: the file names of a real run's, bit exact in both directions.

``adapter_model.safetensors`` with ``adapter_config.json``, and ``optimizer.safetensors`` beside it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from plait.core.errors import ModelError
from plait.core.runs import LoraSpec
from plait.engines.scripted.policy import N_FEATURES, Adapter, Array

ADAPTER = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Adam's memory; row 0 belongs to A, row 1 to B."""

    m_2K: Array
    v_2K: Array
    step: int

    @staticmethod
    def empty() -> "Moments":
        """Before the first step."""
        return Moments(m_2K=np.zeros((2, N_FEATURES)), v_2K=np.zeros((2, N_FEATURES)), step=0)


def write_adapter(path: Path, adapter: Adapter, lora: LoraSpec, version: int, base: str) -> None:
    """Write the adapter under an existing directory."""
    (path / ADAPTER).write_bytes(save({"lora_A": adapter.a_K, "lora_B": adapter.b_K}))
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": list(lora.targets),
        "plait": {"version": version, "seed": lora.seed},
    }
    (path / CONFIG).write_text(json.dumps(config))


def read_adapter(path: Path) -> tuple[Adapter, LoraSpec, int]:
    """Adapter, its shape and its version; ModelError if the files are missing or do not match."""
    try:
        tensors = load_file(path / ADAPTER)
        config = json.loads((path / CONFIG).read_text())
        lora = LoraSpec(
            rank=config["r"],
            alpha=config["lora_alpha"],
            targets=tuple(config["target_modules"]),
            seed=config["plait"]["seed"],
        )
        version = int(config["plait"]["version"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelError(f"{path} holds no adapter that can be read: {error!r}") from error
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != {"lora_A": (N_FEATURES,), "lora_B": (N_FEATURES,)}:
        raise ModelError(f"the adapter under {path} has modules that match nothing: {shapes}")
    scale = lora.alpha / lora.rank
    return Adapter(a_K=tensors["lora_A"], b_K=tensors["lora_B"], scale=scale), lora, version


def write_moments(path: Path, moments: Moments) -> None:
    """Write the optimizer under an existing directory."""
    step = np.asarray([moments.step], dtype=np.int64)
    tensors = {"m": moments.m_2K, "v": moments.v_2K, "step": step}
    (path / OPTIMIZER).write_bytes(save(tensors))


def read_moments(path: Path) -> Moments:
    """The optimizer that ``write_moments`` wrote; ModelError if there is none."""
    try:
        tensors = load_file(path / OPTIMIZER)
        return Moments(m_2K=tensors["m"], v_2K=tensors["v"], step=int(tensors["step"][0]))
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(f"{path} holds no optimizer state: save it with optimizer=True") from error
