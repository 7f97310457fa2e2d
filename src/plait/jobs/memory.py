"""Memory: what the processes of a launch hold at most, from its settings and the model's shape.

Left out: libraries (torch takes some 200 MB in each worker), the head and tools.
"""

from dataclasses import dataclass

from plait.engines.protocol import ModelShape
from plait.runtime.device import DTYPE_BYTES
from plait.runtime.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes by what they are for."""

    weights: int
    """On a CPU mapped once, whatever the number of workers; on CUDA a copy for each."""
    packed: int
    """Private copies of the rollout workers, fp32 on a CPU and for plait's own forward; of the head
    alone in a lean launch."""
    cache: int
    micro_batches: int
    adapters: int

    @property
    def total(self) -> int:
        return self.weights + self.packed + self.cache + self.micro_batches + self.adapters


def estimate(shape: ModelShape, settings: Settings, *, adapters: int) -> Memory:
    """Under resolved ``settings``; ``adapters``: bytes of all jobs' adapters and moments."""
    item, on_cpu = DTYPE_BYTES[settings.dtype], settings.device == "cpu"
    copied = shape.vocab_size * shape.hidden_size if settings.lean else shape.n_params
    packed = on_cpu and settings.dtype == "fp32" and not shape.by_transformers
    packs = settings.rollout_workers if packed else 0
    return Memory(
        weights=shape.n_params
        * item
        * (1 if on_cpu else settings.rollout_workers + settings.training_workers),
        packed=packs * copied * item,
        cache=settings.kv_blocks * settings.block_bytes(shape),
        micro_batches=settings.training_workers * settings.train_memory_bytes,
        adapters=adapters,
    )
