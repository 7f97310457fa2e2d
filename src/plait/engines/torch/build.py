"""Build the torch engines of one worker from its configuration."""

import contextlib
import ctypes
import time
from functools import partial

import torch

from plait.engines.factory import EngineConfig, Engines
from plait.engines.torch.devices import DTYPES
from plait.models.registry import read_shape

CPU = torch.device("cpu")

GEMM = {"cpu": 1024, "cuda": 8192}
"""Edge of the square product by which the device's peak rate is measured."""

BATCH_TOKENS = {"cpu": 512, "cuda": 8192}
"""Tokens of one forward step at most: what keeps the device busy, and no more, so that a prompt
does not hold up those that decode. The second is an estimate: not measured on a GPU."""


def build(config: EngineConfig) -> Engines:
    """Rollout and training engines. On a CPU all workers map one copy of the weights and take their
    threads anew between layers; on CUDA each worker has a copy and nothing is to be taken."""
    rollout = train = None
    dtype, device = DTYPES[config.dtype], torch.device(config.device)
    on_layer = config.on_layer
    if device.type == "cuda":
        torch.cuda.set_device(device)
        on_layer = _nothing
    exact = config.options.get("deterministic", 0.0) > 0
    if config.rollout:
        from plait.engines.torch.rollout import TorchRollout

        rollout = TorchRollout(
            config.model_dir,
            n_blocks=config.kv_blocks,
            block_size=config.block_size,
            max_seqs=config.max_seqs,
            max_batch_tokens=max(BATCH_TOKENS[device.type], config.max_seqs),
            pack_layers=config.options.get("pack_layers", 1.0) > 0,
            on_layer=on_layer,
            exact=exact,
            dtype=dtype,
            device=config.device,
            graphs=device.type == "cuda" and config.options.get("cuda_graphs", 1.0) > 0,
        )
    if config.train:
        from plait.engines.torch.trainer import TorchTrain

        train = TorchTrain(
            config.model_dir,
            memory_bytes=config.train_memory_bytes,
            recompute=config.options.get("recompute", 0.0) > 0,
            on_layer=on_layer,
            exact=exact,
            dtype=dtype,
            device=config.device,
        )
    _return_freed_memory()
    return Engines(
        rollout=rollout,
        train=train,
        shape=read_shape(config.model_dir),
        set_threads=torch.set_num_threads,
        peak_flops=partial(measure_peak, device, dtype),
    )


def _return_freed_memory() -> None:
    """Packing and fusing leave freed memory with the allocator, which keeps it for good; give it
    back to the machine, where a libc can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _nothing() -> None:
    """Between layers on CUDA."""


def measure_peak(
    device: torch.device = CPU, dtype: torch.dtype = torch.float32, repeats: int = 5
) -> float:
    """FLOP/s of the best of a few square products, on a CPU with the threads now set."""
    n = GEMM[device.type]
    a, b = (torch.randn(n, n, dtype=dtype, device=device) for _ in range(2))
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best
