"""Adapters: random LoRA weights of a given rank on every linear layer, as PEFT files."""

import functools
import tempfile
from pathlib import Path

import torch

from plait.adapters.peft import Adapter, write_adapter
from plait.core.runs import LoraSpec
from plait.engines.torch.arch import GROUPS, Arch, group_sizes, read_arch

SMALL = 0.01
"""Size of B's entries: an adapter that changes what is drawn, and does not break the model."""


@functools.cache
def random_adapter(model_dir: Path, rank: int) -> str:
    """A directory with the adapter."""
    arch: Arch = read_arch(model_dir)
    g = torch.Generator().manual_seed(rank)
    pairs = {}
    for group, modules in GROUPS.items():
        n_in, outs = group_sizes(arch)[group]
        for module, n_out in zip(modules, outs, strict=True):
            for i in range(arch.n_layers):
                a = torch.randn(rank, n_in, generator=g) * n_in**-0.5
                pairs[i, module] = (a, torch.randn(n_out, rank, generator=g) * SMALL)
    folder = tempfile.mkdtemp(prefix="plait-bench-")
    write_adapter(folder, Adapter(spec=LoraSpec(rank=rank), pairs=pairs), base_model=str(model_dir))
    return folder
