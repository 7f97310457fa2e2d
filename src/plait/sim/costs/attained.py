"""Attained: which share of a data sheet's figures real engines reach, and what each step costs.

All constants of the roofline that are no hardware figure and no count are here. They were set
before any policy was run and are not fitted to a paper's result. A factor can be laid on each for
sensitivity: ``{"train_mfu": 1.3}``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite

from plait.core.errors import ConfigError
from plait.sim.costs.names import pick


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """Shares (in (0, 1]) and overheads of one family of devices."""

    prefill_mfu: float
    """Prefill's FLOPs over the peak."""
    decode_mfu: float
    """The same of a decode step that compute bounds."""
    train_mfu: float
    """Useful FLOPs, without those of recomputed activations, over the peak."""
    reference_mfu: float
    memory_share: float
    """Memory traffic of a decode step, and of the optimizer, over the memory's bandwidth."""
    link_share: float
    """Collectives inside a node over the link's bandwidth."""
    network_share: float
    """The same between nodes."""
    host_share: float
    """Copies between device and pinned host memory over the host link's bandwidth."""
    step_overhead_s: float
    """Of each forward step of rollout: scheduling, sampling, returning tokens."""
    layer_overhead_s: float
    """Of each layer of such a step: what its kernels take however little they do."""
    adapter_layer_s: float
    """Of each layer, the same once more where adapters are applied."""
    collective_s: float
    """Of each collective inside a node, however small."""
    network_collective_s: float
    """Of each collective between nodes."""
    train_overhead_s: float
    """Of each update: making batches, losses, clipping, bookkeeping."""
    sync_overhead_s: float
    """Of each sync, offload or load, however small."""
    micro_batch_tokens: float
    """Tokens of one pass of training or reference; each pass gathers sharded weights anew."""


GPU = Attained(
    prefill_mfu=0.50,
    # Large GEMMs reach 60–75 % of the dense peak on A100 and H100 (vendors' and public GEMM
    # benchmarks); attention, norms and the last, half-full chunk cost the rest.
    decode_mfu=0.50,
    # The same GEMMs at some hundred rows.
    train_mfu=0.40,
    # Public FSDP training of 7B to 30B on H100 and A100 reaches 40–55 % (MosaicML LLM Foundry's
    # benchmark tables). Sequences of unequal length, as RL has, sit at the lower end.
    reference_mfu=0.45,
    # Between the two: forward only, but with the trainer's batches and sharded weights.
    memory_share=0.75,
    # A stream copy reaches 85–92 % of HBM's bandwidth; decode kernels of serving engines 60–80 %
    # of it end to end (Databricks, "LLM inference performance engineering", MBU).
    link_share=0.75,
    # NCCL's all-reduce: bus bandwidth 230 of 300 GB/s (A100), 340–370 of 450 GB/s (H100).
    network_share=0.75,
    # The same over InfiniBand with one adapter for each device.
    host_share=0.75,
    # Pinned copies: 24–25 of 32 GB/s (PCIe 4.0 x16), 50 of 64 GB/s (PCIe 5.0 x16).
    step_overhead_s=1.0e-3,
    # Python scheduler and sampling of a serving engine with CUDA graphs.
    layer_overhead_s=25e-6,
    # About ten kernels a layer at 2–3 µs each inside a CUDA graph.
    adapter_layer_s=14e-6,
    # Shrink and expand kernels on the four fused projections, 1–2 µs each (Punica, S-LoRA).
    collective_s=10e-6,
    # A small all-reduce over NVLink.
    network_collective_s=30e-6,
    # A small all-reduce over InfiniBand.
    train_overhead_s=0.1,
    # Some dozens of small host-bound operations for each of several passes.
    sync_overhead_s=0.1,
    # Walking over some hundred tensors, barriers, and dropping the engine's cache.
    micro_batch_tokens=16_384.0,
    # The usual setting of dynamic micro-batches for 80 GB devices (verl's examples).
)

NPU = replace(
    GPU,
    # Published training of dense models on Ascend 910B lies at 30–45 % MFU; engines and kernels
    # are younger than CUDA's, and graphs cover less of a step.
    prefill_mfu=0.40,
    decode_mfu=0.40,
    train_mfu=0.32,
    reference_mfu=0.36,
    memory_share=0.65,
    step_overhead_s=2.0e-3,
    layer_overhead_s=40e-6,
    adapter_layer_s=30e-6,
    collective_s=20e-6,
)

CPU = Attained(
    prefill_mfu=0.59,
    # B7: training's share; prefill runs the same large products.
    decode_mfu=0.48,
    # B7: decode at 64 rows.
    train_mfu=0.59,
    # B7: training.
    reference_mfu=0.59,
    memory_share=0.75,
    link_share=0.75,
    network_share=0.75,
    host_share=0.75,
    step_overhead_s=0.01,
    layer_overhead_s=0.5e-3,
    # B3: steps of SmolLM2-135M (30 layers) take 82, 151 and 278 ms at 8, 32 and 64 rows. With
    # 57 ms of weights and 3.95 ms a row, 25 ms are left to each step.
    adapter_layer_s=0.9e-3,
    # B4: four adapters at 8 rows add 27 ms to 30 layers.
    collective_s=100e-6,
    network_collective_s=200e-6,
    train_overhead_s=0.1,
    sync_overhead_s=0.1,
    micro_batch_tokens=1024.0,
)

FAMILIES = {"gpu": GPU, "npu": NPU, "cpu": CPU}
NAMES = tuple(field.name for field in fields(Attained))
SHARES = tuple(name for name in NAMES if name.endswith(("_mfu", "_share")))


def attained(family: str, factors: Mapping[str, float]) -> Attained:
    """A family's constants, each multiplied by its factor where there is one."""
    base = FAMILIES[family]
    changed: dict[str, float] = {}
    for name, factor in factors.items():
        pick("constant", name, dict.fromkeys(NAMES, True))
        if not (isinstance(factor, (int, float)) and isfinite(factor) and factor > 0):
            raise ConfigError(f"constants.{name} is {factor!r}: give a positive factor, e.g. 1.3")
        changed[name] = getattr(base, name) * factor
        if name in SHARES and changed[name] > 1:
            raise ConfigError(
                f"constants.{name}: {factor} makes it {changed[name]:.2f} of the data sheet's "
                f"figure: give at most {1 / getattr(base, name):.2f}"
            )
    return replace(base, **changed)
