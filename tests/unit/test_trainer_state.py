import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_trainer_ops import ARCH

from plait.adapters.peft import CONFIG, WEIGHTS
from plait.core.errors import ModelError
from plait.core.operations import AdamParams
from plait.core.runs import LoraSpec
from plait.engines.torch.train.adamw import adamw_step
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.train.state import OPTIMIZER, RUN, load_run, save_run

CPU = torch.device("cpu")
SPEC = LoraSpec(rank=2, alpha=5.0, targets=("v_proj", "q_proj"), seed=77)


def trained(steps: int = 3) -> RunParams:
    params = RunParams(ARCH, SPEC, CPU)
    params.init()
    step(params, steps)
    return params


def step(params: RunParams, n: int = 1) -> None:
    for _ in range(n):
        params.grad.copy_(params.flat.cos())
        adamw_step(params, AdamParams(learning_rate=0.01))


def same(a: RunParams, b: RunParams) -> bool:
    tensors = all(torch.equal(getattr(a, x), getattr(b, x)) for x in ("flat", "m", "v"))
    return tensors and (a.steps, a.version, a.spec) == (b.steps, b.version, b.spec)


def test_everything_comes_back_and_continues_bit_for_bit(tmp_path: Path) -> None:
    params = trained()
    save_run(tmp_path, params, base_model="m", optimizer=True)
    again = load_run(tmp_path, ARCH, CPU, optimizer=True)
    assert same(again, params)
    step(params), step(again)
    assert same(again, params)


def test_a_fresh_process_reads_the_same_bits(tmp_path: Path) -> None:
    params = trained()
    save_run(tmp_path, params, base_model="m", optimizer=True)
    step(params)
    here = Path(__file__).parent
    code = (
        f"import sys; sys.path[:0] = [{str(here)!r}]\n"
        "import pathlib, torch\n"
        "from test_trainer_state import *\n"
        f"params = load_run({str(tmp_path)!r}, ARCH, CPU, optimizer=True)\n"
        "step(params)\n"
        f"torch.save([params.flat, params.m, params.v], {str(tmp_path / 'out.pt')!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    theirs = torch.load(tmp_path / "out.pt")
    assert all(
        torch.equal(a, b) for a, b in zip(theirs, (params.flat, params.m, params.v), strict=True)
    )


def test_without_the_optimizer_moments_and_counter_start_anew(tmp_path: Path) -> None:
    params = trained()
    save_run(tmp_path, params, base_model="m", optimizer=True)
    again = load_run(tmp_path, ARCH, CPU, optimizer=False)
    assert torch.equal(again.flat, params.flat)
    assert again.steps == 0
    assert not again.m.any()
    assert not again.v.any()
    assert again.version == params.version


def test_a_foreign_peft_directory_loads_without_the_optimizer(tmp_path: Path) -> None:
    params = trained()
    save_run(tmp_path, params, base_model="m", optimizer=False)
    (tmp_path / RUN).unlink()
    again = load_run(tmp_path, ARCH, CPU, optimizer=False)
    assert torch.equal(again.flat, params.flat)
    assert (again.version, again.spec.rank, again.spec.alpha) == (0, 2, 5.0)
    with pytest.raises(ModelError, match="optimizer=False"):
        load_run(tmp_path, ARCH, CPU, optimizer=True)


def test_another_runs_optimizer_is_refused(tmp_path: Path) -> None:
    save_run(tmp_path, trained(), base_model="m", optimizer=True)
    wide = RunParams(ARCH, replace(SPEC, rank=4), CPU)
    save_run(tmp_path, wide, base_model="m", optimizer=False)
    with pytest.raises(ModelError, match="does not belong"):
        load_run(tmp_path, ARCH, CPU, optimizer=True)


@pytest.mark.parametrize("file", [WEIGHTS, OPTIMIZER])
def test_a_torn_file_is_a_model_error(tmp_path: Path, file: str) -> None:
    save_run(tmp_path, trained(), base_model="m", optimizer=True)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError):
        load_run(tmp_path, ARCH, CPU, optimizer=True)


def test_files_are_reproducible(tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(4)]
    for folder in folders:
        folder.mkdir()
        save_run(folder, trained(), base_model="m", optimizer=True)
    for name in (CONFIG, WEIGHTS, RUN, OPTIMIZER):
        assert len({(f / name).read_bytes() for f in folders}) == 1
    assert json.loads((folders[0] / RUN).read_text())["lora"]["seed"] == 77
