"""Settings of one launch: the share of the machine it may use, resolved once and written down."""

import math
import os
from dataclasses import dataclass, replace

import psutil

from plait.cluster.devices import CudaDevice, cuda_devices
from plait.core.errors import CapacityError, ConfigError
from plait.engines.factory import BLOCK_SIZE, TRAIN_BYTES
from plait.engines.protocol import ModelShape
from plait.models.shape import KV_BYTES
from plait.runtime.device import DTYPE_BYTES, choose_device

KV_SHARE = 0.25
"""Share of free memory that the cache may take: the rest is activations and the user's."""

KV_MAX_BYTES = 256 << 20
"""More cache than this does not help a CPU, whose decode rate is flat beyond a few hundred rows."""

LEAN_KV_MAX_BYTES = 128 << 20
LEAN_TRAIN_BYTES = 350_000_000
"""The same two budgets where memory matters more than speed."""

CUDA_TRAIN_SHARE = 0.25
"""Share of a CUDA device's free memory for activations, of all workers that train. What it and the
cache leave is for the weights, of which each worker has a copy there, and for what CUDA itself
takes. Not measured."""

MAX_CORES = 4096
"""More are a mistyped number, of which the libraries below complain in words of their own."""
MAX_WORKERS = 64
"""That roll out, or that train. Each is a process with a base model of its own: a thousand,
mistyped, stop the machine before any of them has started."""
STEP_LIMIT_S = 1800.0
"""A layer, or the writing of a version, takes seconds: no machine that is of use makes it so many
times slower."""
MIN_STEP_LIMIT_S = 10.0
"""A layer of a large model may take seconds: with less, a worker that is merely busy would be
killed again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a launch runs on."""

    engine: str = "torch"
    cores: int = 0
    """Cores that all workers together may use; 0 is all that this process may run on."""
    device: str = "auto"
    """``cpu``, ``cuda``, ``cuda:N``; ``auto`` is CUDA where torch has it, else the CPU."""
    dtype: str = "auto"
    """Of weights, activations and cache: ``fp32``, ``bf16``; ``auto`` is bf16 on CUDA, else fp32.
    Adapters in training, their moments and all log-probs are fp32."""
    cuda_graphs: bool = True
    """On CUDA, decode steps are recorded once and replayed."""
    kv_blocks: int = 0
    """Cache blocks of the rollout workers together; 0 is sized from the device's free memory."""
    block_size: int = BLOCK_SIZE
    max_seqs: int = 64
    """Samples in one forward step, of each worker."""
    rollout_workers: int = 0
    """Processes that roll out, each with its part of the cache (and its own packed weights); 0 is
    one."""
    training_workers: int = 0
    """Processes that train, each with the runs that are at home on it; 0 is one."""
    train_memory_bytes: int = 0
    """Activations of what each worker that trains has under way; 0 is what suits the device."""
    elastic: bool = True
    """Workers lend each other the cores that they do not use; off, each keeps to its part."""
    lean: bool = False
    """Memory before speed: no packed copy of the layers' weights, half the cache, smaller
    micro-batches (figure A5 gives both sides)."""
    recompute: bool = False
    """The backward pass computes each layer again instead of keeping it: a fraction of a
    micro-batch's memory, for the time of a second forward pass (measured, 512 tokens of a 135 M
    model: 0.4 times the memory, 1.4 times the time)."""
    step_limit_s: float = 0.0
    """A worker that is in one step for longer, without getting to its next layer, hangs: it is
    replaced. 0 is half an hour; other values are finite, ``MIN_STEP_LIMIT_S`` at least."""
    deterministic: bool = False
    """A job gives the same bits every time, alone or shared: sums have one order whatever the batch
    and the threads, and a batch is drawn from the version that its number says."""

    def check(self) -> None:
        """ConfigError if a number is none that any model could run with."""
        cores = self.cores or len(os.sched_getaffinity(0))
        counts = self.kv_blocks, self.rollout_workers, self.training_workers
        if min(cores, self.max_seqs) < 1 or min(counts) < 0:
            raise ConfigError(
                "cores and max_seqs must be at least 1, kv_blocks, rollout_workers and "
                "training_workers at least 0"
            )
        if cores > MAX_CORES:
            raise ConfigError(f"{cores} cores: give at most {MAX_CORES}, or 0 for all there are")
        if max(counts[1:]) > MAX_WORKERS:
            raise ConfigError(
                f"{max(counts[1:])} workers of one kind: give at most {MAX_WORKERS}, since "
                "each has its own copy of what it works on"
            )
        if self.step_limit_s and not MIN_STEP_LIMIT_S <= self.step_limit_s < math.inf:
            raise ConfigError(
                f"a step limit of {self.step_limit_s:g} s: give {MIN_STEP_LIMIT_S:g} or more "
                f"seconds, or leave it out for {STEP_LIMIT_S:g}"
            )

    def resolve(self, shape: ModelShape) -> "Settings":
        """The same with every 0 replaced; ConfigError or CapacityError if that is impossible."""
        self.check()
        cores = self.cores or len(os.sched_getaffinity(0))
        if self.deterministic and shape.by_transformers:
            raise ConfigError(
                f"{shape.name} runs through transformers, and deterministic mode is for models of "
                "plait's own forward: leave it out, or choose another model"
            )
        device, dtype, cuda = choose_device(
            self.device, self.dtype, deterministic=self.deterministic, look=cuda_devices
        )
        on_device = replace(self, device=device, dtype=dtype)
        block_bytes = on_device.block_bytes(shape)
        free = int(psutil.virtual_memory().available) if cuda is None else cuda.free_bytes
        blocks = self.kv_blocks or self._kv_budget(free, cuda) // block_bytes
        if blocks * block_bytes > free:
            raise CapacityError(
                f"{blocks} cache blocks need {blocks * block_bytes / 1e9:.1f} GB, "
                f"{free / 1e9:.1f} GB are free: lower kv_blocks"
            )
        rollout_workers = max(1, self.rollout_workers)
        return replace(
            on_device,
            cores=cores,
            kv_blocks=max(blocks, rollout_workers),
            rollout_workers=rollout_workers,
            training_workers=max(1, self.training_workers),
            train_memory_bytes=self._train_budget(cuda),
            step_limit_s=self.step_limit_s or STEP_LIMIT_S,
        )

    def _kv_budget(self, free_bytes: int, cuda: CudaDevice | None) -> int:
        if cuda is not None:
            return int(free_bytes * KV_SHARE / (2 if self.lean else 1))
        return min(LEAN_KV_MAX_BYTES if self.lean else KV_MAX_BYTES, int(free_bytes * KV_SHARE))

    def _train_budget(self, cuda: CudaDevice | None) -> int:
        if cuda is not None:
            parts = max(1, self.training_workers) * (2 if self.lean else 1)
            sized = int(cuda.free_bytes * CUDA_TRAIN_SHARE / parts)
            return self.train_memory_bytes or sized
        train = self.train_memory_bytes or TRAIN_BYTES
        return min(train, LEAN_TRAIN_BYTES) if self.lean else train

    def block_bytes(self, shape: ModelShape) -> int:
        """Keys and values of one cache block, all layers, once the dtype is settled."""
        return self.block_size * shape.kv_bytes_per_token * DTYPE_BYTES[self.dtype] // KV_BYTES

    @property
    def worker_kv_blocks(self) -> int:
        """Cache blocks of one rollout worker."""
        return self.kv_blocks // self.rollout_workers
