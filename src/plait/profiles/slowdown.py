"""Slowdown: how much longer a sub-stage takes with part of a worker and a neighbour beside it.

    s(k_A, k_B) = f(k_A, k_B, α_A, Mem_A)        (JigsawRL §4.2)

``Analytic`` computes it from how far each sub-stage is bound by compute and by memory traffic; it
stands in where nothing has been measured. ``profiles.table`` interpolates measured values.

Invariants: at least 1; alone with the whole worker exactly 1; never less with a smaller share of
compute or of memory.
"""

from dataclasses import dataclass
from typing import Protocol

from plait.core.substages import Kind, Substage


class Slowdown(Protocol):
    """The model that policies and simulator ask."""

    def __call__(
        self, own: Substage, beside: Substage | None, compute: float, memory: float
    ) -> float:
        """Time of ``own`` over its time alone, with ``compute`` of the worker and ``memory`` of the
        bytes that it wants, both in (0, 1]."""
        ...


FULL_TOKENS = 256
"""Tokens per forward step from which rollout wants all of the compute (JigsawRL §4.2: training and
rollout from 256 on are highly sensitive, below 128 hardly)."""
COMPUTE_EXPONENT = 0.716
"""A quarter of the multiprocessors makes compute-bound work 2.7 times as long (JigsawRL Fig. 7):
4 to the power of this. Kernels alone do not fill the device, so it is below 1."""
CONTENTION = 0.33
"""Two compute-bound sub-stages on halves take up to 2.19 times as long (Fig. 8), of which the
halves explain 2 to the power of 0.716: the rest is what they do to each other's caches."""
MEMORY_EXPONENT = 0.516
"""Half of the wanted memory costs up to 1.43 (§4.2: 80 % to 40 %)."""
DECODE_TRAFFIC, BATCH_TRAFFIC = 0.8, 0.6
"""Share of the memory bandwidth that rollout takes alone: decoding reads all weights per step and
attains about four fifths."""
MATRIX_TRAFFIC = 0.3
"""The same of training, reference and prefill, which use what they read many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analytic:
    """Compute- against memory-bound; its constants are the published data points."""

    compute_exponent: float = COMPUTE_EXPONENT
    contention: float = CONTENTION
    memory_exponent: float = MEMORY_EXPONENT
    full_tokens: float = FULL_TOKENS
    decode_traffic: float = DECODE_TRAFFIC
    batch_traffic: float = BATCH_TRAFFIC
    matrix_traffic: float = MATRIX_TRAFFIC

    def __call__(
        self, own: Substage, beside: Substage | None, compute: float, memory: float
    ) -> float:
        """The larger of what compute and traffic cost, times what missing memory costs."""
        if not own.kind.on_device:
            return 1.0
        need = self._wants(own)
        by_compute: float = max(1.0, need / compute) ** self.compute_exponent
        by_traffic = 1.0
        if beside is not None and beside.kind.on_device:
            by_compute *= 1.0 + self.contention * need * self._wants(beside)
            traffic = self._traffic(own)
            excess = max(0.0, traffic + self._traffic(beside) - 1.0)
            by_traffic += excess * traffic
        short: float = (1.0 / min(1.0, memory)) ** self.memory_exponent
        return max(by_compute, by_traffic) * short

    def _wants(self, substage: Substage) -> float:
        """Share of the worker's compute below which it slows down, in (0, 1]."""
        if substage.kind in (Kind.DECODE, Kind.BATCH):
            return min(1.0, max(1, substage.tokens) / self.full_tokens)
        return 1.0

    def _traffic(self, substage: Substage) -> float:
        """Share of the worker's memory bandwidth that it takes alone."""
        if substage.kind is Kind.DECODE:
            return self.decode_traffic
        return self.batch_traffic if substage.kind is Kind.BATCH else self.matrix_traffic
