"""Decode: one forward step of rollout as a few coefficients, as it is asked millions of times.

The longer of compute, rows · a + context · b, and of reading, weights(rows) + context · k +
adapters · d; then the overhead and the collectives.
"""

from dataclasses import dataclass

from plait.sim.costs.attained import Attained
from plait.sim.costs.devices import Device
from plait.sim.costs.models import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLine:
    """Seconds by rows, cached tokens and adapters, of one model on one slice."""

    row_compute_s: float
    context_compute_s: float
    always_read_s: float
    """Weights that each step reads; the embedding is only looked up."""
    experts_read_s: float
    """All routed experts, if all were hit."""
    miss: float
    """Chance that one row leaves an expert out."""
    context_read_s: float
    adapter_read_s: float
    overhead_s: float
    """Collectives' latency included."""
    adapter_overhead_s: float
    row_moved_s: float
    """Tensor-parallel traffic of a row."""

    def seconds(self, n_rows: int, context_tokens: int, n_adapters: int) -> float:
        """One step; 0 without rows.

        Rows choose their experts independently and evenly: E · (1 − (1 − k/E)^rows) are hit.
        """
        if n_rows < 1:
            return 0.0
        compute_s = n_rows * self.row_compute_s + context_tokens * self.context_compute_s
        memory_s = self.always_read_s + context_tokens * self.context_read_s
        if self.experts_read_s:
            memory_s += self.experts_read_s * (1.0 - self.miss**n_rows)
        rest_s = self.overhead_s + n_rows * self.row_moved_s
        if n_adapters:
            memory_s += n_adapters * self.adapter_read_s
            rest_s += self.adapter_overhead_s
        return max(compute_s, memory_s) + rest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Tensor parallelism: two all-reduces of the activations a layer, on a ring."""

    latency_s: float
    """Of all collectives of a pass."""
    token_s: float
    """Traffic of one token: 2 (n − 1) / n of its activations for each."""


def collectives(model: Model, device: Device, n: int, c: Attained) -> Collectives:
    """Of one pass over ``n`` devices; nothing on one."""
    if n == 1:
        return Collectives(latency_s=0.0, token_s=0.0)
    each_s, rate = c.network_collective_s, device.network_bytes_per_s * c.network_share
    if n <= device.devices_per_node:
        each_s, rate = c.collective_s, device.link_bytes_per_s * c.link_share
    moved = 2.0 * (n - 1) / n * model.hidden * device.weight_width_bytes
    count = 2 * model.n_layers
    return Collectives(latency_s=count * each_s, token_s=count * moved / rate)


def decode_line(
    model: Model, device: Device, n: int, c: Attained, adapter_bytes: int
) -> DecodeLine:
    """The coefficients; ``adapter_bytes`` are those of one adapter."""
    compute = n * device.peak_flops * c.decode_mfu
    memory = n * device.memory_bytes_per_s * c.memory_share
    width = device.weight_width_bytes
    experts = model.n_layers * model.n_experts * model.expert_params if model.n_experts else 0
    between = collectives(model, device, n, c)
    return DecodeLine(
        row_compute_s=(model.body_flops + model.head_flops) / compute,
        context_compute_s=model.attention_flops / compute,
        always_read_s=(model.always_params + model.head_params) * width / memory,
        experts_read_s=experts * width / memory,
        miss=1.0 - model.top_k / model.n_experts if model.n_experts else 1.0,
        context_read_s=model.kv_values * width / memory,
        adapter_read_s=adapter_bytes / memory,
        overhead_s=c.step_overhead_s + model.n_layers * c.layer_overhead_s + between.latency_s,
        adapter_overhead_s=model.n_layers * c.adapter_layer_s,
        row_moved_s=between.token_s,
    )
