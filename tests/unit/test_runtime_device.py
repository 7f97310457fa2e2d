"""Where a launch computes: what is chosen, what is refused, and what follows from it."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from foreign_models import foreign_model

from plait.cli import main
from plait.cli.resume import overridden
from plait.cli.serve import serve_command
from plait.cluster import devices
from plait.cluster.devices import CudaDevice
from plait.core.errors import CapacityError, ConfigError, EngineError
from plait.models.registry import TINY_DIR
from plait.models.shape import read_shape
from plait.runtime import settings as settings_module
from plait.runtime.device import choose_device
from plait.runtime.settings import (
    CUDA_TRAIN_SHARE,
    KV_MAX_BYTES,
    KV_SHARE,
    MAX_CORES,
    MAX_WORKERS,
    MIN_STEP_LIMIT_S,
    STEP_LIMIT_S,
    Settings,
)

GPU = CudaDevice(name="a GPU", free_bytes=80_000_000_000)
SMALL = CudaDevice(name="a small one", free_bytes=4_000_000_000)
SHAPE = read_shape(TINY_DIR)


def chosen(
    device: str, dtype: str = "auto", *found: CudaDevice, deterministic: bool = False
) -> tuple[str, str, CudaDevice | None]:
    return choose_device(device, dtype, deterministic=deterministic, look=lambda: found)


@pytest.mark.parametrize(
    ("device", "dtype", "found", "want"),
    [
        ("auto", "auto", (), ("cpu", "fp32", None)),
        ("auto", "bf16", (), ("cpu", "bf16", None)),
        ("auto", "auto", (GPU, SMALL), ("cuda:0", "bf16", GPU)),
        ("auto", "fp32", (GPU,), ("cuda:0", "fp32", GPU)),
        ("cpu", "auto", (GPU,), ("cpu", "fp32", None)),
        ("cuda", "auto", (GPU, SMALL), ("cuda:0", "bf16", GPU)),
        ("cuda:1", "auto", (GPU, SMALL), ("cuda:1", "bf16", SMALL)),
    ],
)
def test_what_is_chosen(
    device: str, dtype: str, found: Sequence[CudaDevice], want: tuple[object, ...]
) -> None:
    assert chosen(device, dtype, *found) == want


def test_deterministic_mode_stays_on_the_cpu() -> None:
    assert chosen("auto", "auto", GPU, deterministic=True) == ("cpu", "fp32", None)
    for asked in (("cuda", "auto"), ("auto", "bf16")):
        with pytest.raises(ConfigError, match="deterministic mode is for fp32 on a CPU"):
            chosen(*asked, GPU, deterministic=True)


@pytest.mark.parametrize(
    ("device", "dtype", "message"),
    [
        ("gpu", "auto", "choose auto, cpu, cuda or cuda:N"),
        ("cuda:", "auto", "choose auto, cpu, cuda or cuda:N"),
        ("cpu", "fp16", "choose auto, fp32 or bf16"),
        ("cuda:1", "auto", r"cuda:1 is not there: torch finds 1 .* or --device cpu"),
    ],
)
def test_what_is_refused(device: str, dtype: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen(device, dtype, GPU)


def test_nobody_looks_where_the_answer_is_known() -> None:
    def look() -> tuple[CudaDevice, ...]:
        raise AssertionError

    for asked in ({"device": "cpu"}, {"device": "auto", "deterministic": True}):
        choose_device(**{"dtype": "auto", "deterministic": False, "look": look} | asked)


def test_budgets_are_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "cuda_devices", lambda: (GPU,))
    on_cpu, on_gpu = (Settings(device=d).resolve(SHAPE) for d in ("cpu", "cuda"))
    assert on_cpu.kv_blocks * on_cpu.block_bytes(SHAPE) <= KV_MAX_BYTES
    kv_bytes = on_gpu.kv_blocks * on_gpu.block_bytes(SHAPE)
    assert kv_bytes == pytest.approx(GPU.free_bytes * KV_SHARE, rel=1e-3)
    assert on_gpu.train_memory_bytes == GPU.free_bytes * CUDA_TRAIN_SHARE
    lean = Settings(device="cuda", lean=True).resolve(SHAPE)
    assert lean.kv_blocks == on_gpu.kv_blocks // 2
    assert on_gpu.resolve(SHAPE) == on_gpu, "what a launch has recorded stays"
    with pytest.raises(CapacityError, match=r"80\.0 GB are free"):
        Settings(device="cuda", kv_blocks=10**9).resolve(SHAPE)


def test_blocks_of_bf16_are_half_as_large() -> None:
    fp32, bf16 = (Settings(device="cpu", dtype=d).resolve(SHAPE) for d in ("fp32", "bf16"))
    assert fp32.block_bytes(SHAPE) == 2 * bf16.block_bytes(SHAPE)
    assert bf16.kv_blocks == 2 * fp32.kv_blocks


def test_a_resumed_launch_keeps_its_device() -> None:
    before = Settings(device="cpu", dtype="bf16")
    assert overridden(before, Settings()) == before
    assert overridden(before, Settings(dtype="fp32")) == replace(before, dtype="fp32")


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_device_that_is_not_there_is_one_line_before_anything_starts(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "cuda_devices", lambda: ())
    job = tmp_path / "job.yaml"
    job.write_text("name: a\nmodel: tiny\nsteps: 1\nenvironment: {name: tiny-sum}\n")
    launch = tmp_path / "launch"
    options = {"directory": launch, "resume": None} if verb == "run" else {}
    with pytest.raises(SystemExit) as end:
        getattr(main, verb)([job], device="cuda:0", **options)
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith("error: device cuda:0 is not there: torch finds none here")
    assert said.count("\n") == 1
    assert not launch.exists()


def test_deterministic_mode_without_a_forward_of_our_own_is_one_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = foreign_model(tmp_path / "model", "olmo2")
    job, launch = tmp_path / "job.yaml", tmp_path / "launch"
    job.write_text(f"name: a\nmodel: {model}\nsteps: 1\nenvironment: {{name: tiny-sum}}\n")
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main.run([job], directory=launch, resume=None, deterministic=True)
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith(f"error: {model} runs through transformers, and deterministic mode")
    assert said.count("\n") == 1
    assert not launch.exists()


@pytest.fixture
def fresh() -> None:
    devices.cuda_devices.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_a_driver_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DRIVER", "libplait-has-no-such-driver.so")
    monkeypatch.setattr(subprocess, "run", None)
    assert devices.cuda_devices() == ()


@pytest.mark.usefixtures("fresh")
def test_torch_is_asked_where_there_is_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DRIVER", "libc.so.6")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.cuda_devices() == ()
    found = subprocess.CompletedProcess([], 0, '[{"name": "a GPU", "free_bytes": 80000000000}]\n')
    devices.cuda_devices.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: found)
    assert devices.cuda_devices() == (GPU,)


@pytest.mark.usefixtures("fresh")
def test_a_torch_that_cannot_say_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DRIVER", "libc.so.6")
    monkeypatch.setattr(devices.sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="give --device cpu to do without") as found:
        devices.cuda_devices()
    assert "\n" not in str(found.value)


@pytest.fixture(autouse=True, scope="module")
def _clean() -> None:
    yield
    devices.cuda_devices.cache_clear()


def test_more_cores_than_any_machine_has_are_refused() -> None:
    assert Settings(device="cpu", cores=MAX_CORES).resolve(SHAPE).cores == MAX_CORES
    with pytest.raises(ConfigError, match="1000000000 cores: give at most 4096"):
        Settings(device="cpu", cores=1_000_000_000).resolve(SHAPE)


@pytest.mark.parametrize("kind", ["rollout_workers", "training_workers"])
def test_more_workers_than_a_machine_has_room_for_are_refused(kind: str) -> None:
    assert getattr(Settings(device="cpu", **{kind: MAX_WORKERS}).resolve(SHAPE), kind) == 64
    with pytest.raises(ConfigError, match="at most 64"):
        Settings(device="cpu", **{kind: 1000}).resolve(SHAPE)


@pytest.mark.parametrize("limit_s", [float("inf"), float("nan"), 1e-9, 9.9, -60.0])
def test_a_step_limit_that_no_worker_could_keep_or_break_is_refused(limit_s: float) -> None:
    with pytest.raises(ConfigError, match="give 10 or more seconds, or leave it out for 1800"):
        Settings(device="cpu", step_limit_s=limit_s).resolve(SHAPE)


@pytest.mark.parametrize("wrong", [{"step_limit_s": 5.0}, {"cores": 5000}, {"kv_blocks": -1}])
def test_a_service_is_not_started_with_what_no_model_could_run_with(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.service.serve.run", lambda plan: 0)
    with pytest.raises(ConfigError):
        serve_command(
            tmp_path / "house",
            [],
            bind="127.0.0.1:0",
            database=None,
            policy=None,
            asked=Settings(**wrong),
            allow_code=False,
        )


def test_a_step_limit_is_what_was_asked_for_or_half_an_hour() -> None:
    least, default = (
        Settings(device="cpu", step_limit_s=limit_s).resolve(SHAPE).step_limit_s
        for limit_s in (MIN_STEP_LIMIT_S, 0.0)
    )
    assert (least, default) == (MIN_STEP_LIMIT_S, STEP_LIMIT_S)
