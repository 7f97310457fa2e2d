"""Memory: what the processes of a launch hold at most, from its settings and the model's shape.

Left out: libraries (torch takes some 200 MB in each worker), the head and tools.
"""

from dataclasses import dataclass

from plait.engines.protocol import ModelShape
from plait.runtime.settings import Settings

FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes by what they are for."""

    weights: int
    """Mapped once, whatever the number of workers."""
    packed: int
    """Private copies of the rollout workers; of the head alone in a lean launch."""
    cache: int
    micro_batches: int
    adapters: int

    @property
    def total(self) -> int:
        return self.weights + self.packed + self.cache + self.micro_batches + self.adapters


def estimate(shape: ModelShape, settings: Settings, *, adapters: int) -> Memory:
    """Under resolved ``settings``; ``adapters``: bytes of all jobs' adapters and moments."""
    packed = shape.vocab_size * shape.hidden_size if settings.lean else shape.n_params
    return Memory(
        weights=shape.n_params * FP32_BYTES,
        packed=settings.rollout_workers * packed * FP32_BYTES,
        cache=settings.kv_blocks * settings.block_size * shape.kv_bytes_per_token,
        micro_batches=settings.train_memory_bytes,
        adapters=adapters,
    )
