"""Devices: what the vendors' data sheets say about one device. Attained shares are elsewhere.

Bandwidths are bytes per second and direction; data sheets often give the sum of both directions.
"""

from dataclasses import dataclass

from plait.sim.costs.names import pick


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a kind, and how it is connected."""

    name: str
    family: str
    """Whose attained shares hold for it: ``gpu``, ``npu`` or ``cpu``."""
    peak_flops: float
    """Dense, per second, at the width of ``weight_width_bytes``."""
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float
    """To the other devices of its node together."""
    network_bytes_per_s: float
    """To other nodes."""
    host_bytes_per_s: float
    """To host memory."""
    devices_per_node: int
    weight_width_bytes: int = 2
    """Of a weight, an activation and a cached key or value: bf16."""
    source: str


DEVICES = {
    device.name: device
    for device in (
        Device(
            name="h100",
            family="gpu",
            peak_flops=989.4e12,
            memory_bytes=80_000_000_000,
            memory_bytes_per_s=3.35e12,
            link_bytes_per_s=450e9,
            network_bytes_per_s=50e9,
            host_bytes_per_s=64e9,
            devices_per_node=8,
            source="NVIDIA H100 SXM5 data sheet (bf16 without sparsity, HBM3, NVLink 900 GB/s both "
            "ways, PCIe 5.0 x16); DGX H100: one 400 Gb/s adapter for each GPU",
        ),
        Device(
            name="h200",
            family="gpu",
            peak_flops=989.4e12,
            memory_bytes=141_000_000_000,
            memory_bytes_per_s=4.8e12,
            link_bytes_per_s=450e9,
            network_bytes_per_s=50e9,
            host_bytes_per_s=64e9,
            devices_per_node=8,
            source="NVIDIA H200 SXM data sheet (HBM3e; the rest as H100); DGX H200",
        ),
        Device(
            name="a100",
            family="gpu",
            peak_flops=312e12,
            memory_bytes=80_000_000_000,
            memory_bytes_per_s=2.039e12,
            link_bytes_per_s=300e9,
            network_bytes_per_s=25e9,
            host_bytes_per_s=32e9,
            devices_per_node=4,
            # Four to a node, as in JigsawRL §5.1; a DGX has eight.
            source="NVIDIA A100 80GB SXM data sheet (NVLink 600 GB/s both ways, PCIe 4.0 x16); "
            "one 200 Gb/s adapter for each GPU as in DGX A100; HGX A100 4-GPU board",
        ),
        Device(
            name="npu",
            family="npu",
            peak_flops=313e12,
            memory_bytes=64_000_000_000,
            memory_bytes_per_s=1.6e12,
            link_bytes_per_s=196e9,
            network_bytes_per_s=25e9,
            host_bytes_per_s=32e9,
            devices_per_node=16,
            # Sixteen to a node with 64 GB each, as in MARLaaS §5, which names no variant. Huawei
            # sells several 910B between 280 and 376 TFLOP/s: this is the one in the middle.
            source="Ascend 910B as in Huawei's Atlas 800T A2 product page (fp16, HBM 64 GB, "
            "HCCS 392 GB/s both ways, 200 Gb/s RoCE for each NPU); host link taken as PCIe 4.0 x16",
        ),
        Device(
            name="cpu",
            family="cpu",
            peak_flops=141e9,
            memory_bytes=8_000_000_000,
            memory_bytes_per_s=12.5e9,
            link_bytes_per_s=12.5e9,
            network_bytes_per_s=1.25e9,
            host_bytes_per_s=12.5e9,
            devices_per_node=1,
            weight_width_bytes=4,
            # What was measured, not what the vendor promises: the memory rate is the one with which
            # a decode step of SmolLM2-135M at 8 rows reads its weights, 538 MB in 57 ms, over the
            # attained share (see attained.py).
            source="two cores of plait's own measurements: GEMM rate of benchmarks/results/B7, "
            "memory rate fitted to B3 (fp32); 8 GB and a 10 Gb/s network assumed",
        ),
    )
}
"""By the name that a node group gives."""

ALIASES = {"910b": "npu", "ascend-910b": "npu"}


def device_of(name: str) -> Device:
    """The device called ``name``; ConfigError with the nearest known name."""
    return pick("device", ALIASES.get(name.lower(), name.lower()), DEVICES)
