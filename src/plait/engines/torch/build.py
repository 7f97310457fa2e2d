"""Build the torch engines of one worker from its configuration."""

import contextlib
import ctypes
import time

import torch

from plait.engines.factory import EngineConfig, Engines
from plait.models.registry import read_shape

GEMM = 1024
"""Edge of the square product by which the machine's peak rate is measured."""


def build(config: EngineConfig) -> Engines:
    """Rollout and training engines over one mapped copy of the weights."""
    rollout = train = None
    exact = config.options.get("deterministic", 0.0) > 0
    if config.rollout:
        from plait.engines.torch.rollout import TorchRollout

        rollout = TorchRollout(
            config.model_dir,
            n_blocks=config.kv_blocks,
            block_size=config.block_size,
            max_seqs=config.max_seqs,
            pack_layers=config.options.get("pack_layers", 1.0) > 0,
            on_layer=config.on_layer,
            exact=exact,
        )
    if config.train:
        from plait.engines.torch.trainer import TorchTrain

        train = TorchTrain(
            config.model_dir,
            memory_bytes=config.train_memory_bytes,
            recompute=config.options.get("recompute", 0.0) > 0,
            on_layer=config.on_layer,
            exact=exact,
        )
    _return_freed_memory()
    return Engines(
        rollout=rollout,
        train=train,
        shape=read_shape(config.model_dir),
        set_threads=torch.set_num_threads,
        peak_flops=measure_peak,
    )


def _return_freed_memory() -> None:
    """Packing and fusing leave freed memory with the allocator, which keeps it for good; give it
    back to the machine, where a libc can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def measure_peak(repeats: int = 5) -> float:
    """FLOP/s of the best of a few square fp32 products with the threads now set."""
    a, b = torch.randn(GEMM, GEMM), torch.randn(GEMM, GEMM)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * GEMM**3 / best
