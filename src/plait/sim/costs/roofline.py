"""Roofline: costs computed from a model's shape, a device's data sheet and attained shares.

A decode step takes the longer of its compute and its memory traffic, its collectives, and an
overhead that does not shrink. Everything is linear between such knees, so more work never takes
less time. What a constant is worth is decided in ``devices`` and ``attained``; real times can
replace these (``measured``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Literal

from plait.core.errors import ConfigError
from plait.sim.costs.attained import Attained, attained
from plait.sim.costs.decode import Collectives, DecodeLine, collectives, decode_line
from plait.sim.costs.devices import Device, device_of
from plait.sim.costs.models import Model, model_of

NO_FACTORS: Mapping[str, float] = MappingProxyType({})

RANK = 16
"""Of an adapter where nobody says otherwise: the middle of what is used (4 to 64)."""

GRADIENT_AND_MOMENTS_BYTES = 14
"""Per trained weight in bf16: gradient 2, fp32 weight, momentum and variance 4 each
(ZeRO, arXiv 1910.02054, §3.1)."""

FULL_WIDTH_BYTES = 12
"""The same where weights are fp32 themselves: gradient and two moments."""

OPTIMIZER_TRAFFIC_BYTES = 28
"""AdamW per weight: gradient read (2), three fp32 numbers read and written (24), and the bf16
weight written (2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Costs of one model on one slice of ``n`` devices."""

    model: Model
    device: Device
    n: int
    """Devices of the slice: tensor parallel."""
    weights: Literal["lora", "full"]
    rank: int
    replicas: int
    """Slices that train one batch together, each with its part of the optimizer (ZeRO)."""
    constants: Attained
    line: DecodeLine
    between: Collectives

    @property
    def peak_flops(self) -> float:
        return self.n * self.device.peak_flops

    @property
    def memory_bytes(self) -> int:
        return self.n * self.device.memory_bytes

    @property
    def weight_bytes(self) -> int:
        return self.model.n_params * self.device.weight_width_bytes

    @property
    def n_trained(self) -> int:
        """Weights that an update changes."""
        if self.weights == "full":
            return self.model.n_params
        return self.model.adapter_params(self.rank)

    @property
    def adapter_bytes(self) -> int:
        return _adapter_bytes(self.model, self.device, self.rank)

    @property
    def train_bytes(self) -> int:
        """This slice's part: the replicas divide it."""
        narrow = self.device.weight_width_bytes == 2
        each = GRADIENT_AND_MOMENTS_BYTES if narrow else FULL_WIDTH_BYTES
        return ceil(self.n_trained * each / self.replicas)

    @property
    def kv_bytes_per_token(self) -> int:
        return self.model.kv_values * self.device.weight_width_bytes

    def decode_s(self, n_rows: int, context_tokens: int, n_adapters: int = 0) -> float:
        return self.line.seconds(n_rows, context_tokens, n_adapters)

    def prefill_s(
        self, n_tokens: int, context_tokens: int = 0, n_adapters: int = 0, n_samples: int = 1
    ) -> float:
        """Compute alone: a few tokens ride with a decode step, which reads the weights."""
        if n_tokens < 1:
            return 0.0
        flops = self._forward_flops(n_tokens, context_tokens, n_samples)
        flops += n_samples * self.model.head_flops  # only a sequence's last position is sampled
        if n_adapters:
            flops += 2.0 * self.model.adapter_params(self.rank) * n_tokens
        compute_s = flops / (self.peak_flops * self.constants.prefill_mfu)
        return compute_s + self._tensor_parallel_s(n_tokens)

    def train_s(self, n_tokens: int, n_samples: int) -> float:
        if n_tokens < 1:
            return 0.0
        forward = self._forward_flops(n_tokens, 0, n_samples) + n_tokens * self.model.head_flops
        passes = 3.0
        if self.weights == "lora":
            # The base gets no gradient: forward, and backward by the activations alone.
            passes = 2.0
            forward += 3.0 * self.model.adapter_params(self.rank) * n_tokens
        compute_s = passes * forward / (self.peak_flops * self.constants.train_mfu)
        # Gathered for the forward, gathered for the backward, gradients scattered (FSDP).
        times = 3.0 if self.weights == "full" else 2.0
        update_s = (
            self.n_trained * OPTIMIZER_TRAFFIC_BYTES / (self.replicas * self._memory_rate)
            + self.constants.train_overhead_s
        )
        moved_s = times * self._gather_s(n_tokens)
        work_s = max(compute_s, moved_s) + passes * self._tensor_parallel_s(n_tokens)
        return work_s + update_s

    def reference_s(self, n_tokens: int, n_samples: int = 1) -> float:
        if n_tokens < 1:
            return 0.0
        flops = self._forward_flops(n_tokens, 0, n_samples) + n_tokens * self.model.head_flops
        compute_s = flops / (self.peak_flops * self.constants.reference_mfu)
        moved_s = self._gather_s(n_tokens)
        return max(compute_s, moved_s) + self._tensor_parallel_s(n_tokens)

    def sync_s(self) -> float:
        """Each device gets its part of the new weights (LoRA: of the adapter)."""
        moved = self.weight_bytes if self.weights == "full" else self.adapter_bytes
        return moved / self.n / self._collective_rate + self.constants.sync_overhead_s

    def offload_s(self) -> float:
        state = self.train_bytes
        state += self.weight_bytes if self.weights == "full" else self.adapter_bytes
        rate = self.n * self.device.host_bytes_per_s * self.constants.host_share
        return state / rate + self.constants.sync_overhead_s

    def load_s(self) -> float:
        return self.offload_s()

    def migrate_s(self, context_tokens: int, n_samples: int = 1) -> float:
        """Taking over samples: their keys and values are computed again (JigsawRL §4.3)."""
        return self.prefill_s(context_tokens, n_samples=n_samples)

    def flops(self, n_forward: int, n_backward: int = 0) -> float:
        """Of products alone, as MFU is usually given: 2 per active weight forwards, 4 backwards,
        2 where the base is frozen."""
        forward = self.model.body_flops + self.model.head_flops
        return forward * (n_forward + (2.0 if self.weights == "full" else 1.0) * n_backward)

    @property
    def _memory_rate(self) -> float:
        return self.n * self.device.memory_bytes_per_s * self.constants.memory_share

    @property
    def _together(self) -> bool:
        """True where slice and replicas are on one node."""
        return self.n * self.replicas <= self.device.devices_per_node

    @property
    def _collective_rate(self) -> float:
        """Bytes per second and device between replicas, or from training to rollout."""
        if self._together:
            return self.device.link_bytes_per_s * self.constants.link_share
        return self.device.network_bytes_per_s * self.constants.network_share

    def _forward_flops(self, n_tokens: int, context_tokens: int, n_samples: int) -> float:
        """Of the layers; each token looks at its sequence's cache and at half its new tokens."""
        seen = (context_tokens + n_tokens / 2.0) / max(n_samples, 1)
        return n_tokens * (self.model.body_flops + self.model.attention_flops * seen)

    def _tensor_parallel_s(self, n_tokens: int) -> float:
        """A long prefill goes through in chunks of a micro-batch."""
        chunks = ceil(n_tokens / self.constants.micro_batch_tokens)
        return chunks * self.between.latency_s + n_tokens * self.between.token_s

    def _gather_s(self, n_tokens: int) -> float:
        """Gathering sharded weights once for each micro-batch; 0 on one replica."""
        if self.replicas == 1:
            return 0.0
        passes = ceil(n_tokens / self.constants.micro_batch_tokens)
        shard = self.weight_bytes / self.n * (self.replicas - 1) / self.replicas
        return passes * shard / self._collective_rate


def costs_of(
    model: str,
    device: str,
    n: int = 1,
    *,
    weights: Literal["lora", "full"] = "full",
    rank: int = RANK,
    replicas: int = 1,
    constants: Mapping[str, float] = NO_FACTORS,
) -> Roofline:
    """Costs of ``model`` on ``n`` devices of a kind; ``constants`` are factors by name.

    A model is a name of ``models.MODELS`` or a Hugging Face config.json. ConfigError names the
    nearest known name.
    """
    for what, number in (("devices", n), ("rank", rank), ("replicas", replicas)):
        if number < 1:
            raise ConfigError(f"{what}: {number} is not possible: give at least 1")
    if weights not in ("lora", "full"):
        raise ConfigError(f"weights: {weights!r} is not known: give lora or full")
    on, shape = device_of(device), model_of(model)
    c = attained(on.family, constants)
    return Roofline(
        model=shape,
        device=on,
        n=n,
        weights=weights,
        rank=rank,
        replicas=replicas,
        constants=c,
        line=decode_line(shape, on, n, c, _adapter_bytes(shape, on, rank)),
        between=collectives(shape, on, n, c),
    )


def _adapter_bytes(model: Model, device: Device, rank: int) -> int:
    return model.adapter_params(rank) * device.weight_width_bytes
