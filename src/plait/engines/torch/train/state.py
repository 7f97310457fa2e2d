"""State: a run on disk, so that it continues bit for bit, in this process or another.

Three files: the PEFT pair (any PEFT reader loads it), ``run.json`` (what PEFT's configuration has
no place for: seed, version) and ``optimizer.safetensors`` (moments in buffer order, step counter).
A gradient that awaits its step is not part of the state. Making the directory appear at once and
under its final name is the caller's.
"""

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from plait.adapters.peft import read_adapter, write_adapter, write_durably
from plait.core.errors import ModelError
from plait.core.runs import LoraSpec
from plait.engines.torch.sizes import Sizes
from plait.engines.torch.train.params import RunParams

RUN, OPTIMIZER = "run.json", "optimizer.safetensors"


def save_run(path: str | Path, params: RunParams, *, base_model: str, optimizer: bool) -> None:
    """Write the run's files into the existing directory ``path`` and flush each to disk."""
    folder = Path(path)
    write_adapter(folder, params.to_adapter(), base_model=base_model)
    run = {"lora": dataclasses.asdict(params.spec), "version": params.version}
    write_durably(folder / RUN, json.dumps(run, indent=2).encode())
    if optimizer:
        moments = {"m": params.m.cpu(), "v": params.v.cpu()}
        # One entry: safetensors writes several in an order that changes from call to call.
        note = json.dumps({"order": params.order, "steps": params.steps})
        write_durably(folder / OPTIMIZER, save(moments, metadata={"plait": note}))


def load_run(
    path: str | Path,
    arch: Sizes,
    device: torch.device,
    *,
    optimizer: bool,
    head_VD: torch.Tensor | None = None,
) -> RunParams:
    """Make a run from ``save_run``'s files, or without ``optimizer`` from any PEFT LoRA directory.

    Without ``optimizer`` the moments and their step counter start from zero. ModelError if a file
    is missing or does not fit the base model.
    """
    folder = Path(path)
    adapter = read_adapter(folder, n_layers=arch.n_layers, paths=arch.paths, head_VD=head_VD)
    spec, version = adapter.spec, 0
    if (folder / RUN).is_file():
        run = json.loads((folder / RUN).read_text())
        lora = run["lora"]
        spec = LoraSpec(**{**lora, "targets": tuple(lora["targets"])})
        version = int(run["version"])
    params = RunParams(arch, spec, device)
    params.set_adapter(adapter)
    params.version = version
    if optimizer:
        _load_moments(folder / OPTIMIZER, params)
    return params


def _load_moments(file: Path, params: RunParams) -> None:
    if not file.is_file():
        raise ModelError(f"{file} is missing: load this adapter with optimizer=False")
    try:
        with safe_open(str(file), framework="pt") as f:
            note = json.loads((f.metadata() or {}).get("plait", "{}"))
            moments = {"m": f.get_tensor("m"), "v": f.get_tensor("v")}
    except SafetensorError as e:
        raise ModelError(f"{file} cannot be read ({e}): load with optimizer=False") from e
    if note.get("order") != params.order or any(
        t.shape != params.flat.shape for t in moments.values()
    ):
        raise ModelError(f"{file} does not belong to this adapter: load it with optimizer=False")
    params.m.copy_(moments["m"])
    params.v.copy_(moments["v"])
    params.steps = note["steps"]
