"""A cost model that can be computed by hand, and short ways to say a workload."""

from dataclasses import dataclass, replace
from typing import Any

from plait.core.errors import ConfigError
from plait.sim.spec import Cluster, DeviceGroup, JobSpec, Lengths, Setting


@dataclass(frozen=True)
class Simple:
    """Everything is linear; a decode step takes ``1 ms + 1 µs a row + 1 ns a token``."""

    n: int = 1
    replicas: int = 1
    memory_bytes: int = 1_000_000_000
    weight_bytes: int = 100_000_000
    train_bytes: int = 100_000_000
    kv_bytes_per_token: int = 1000
    peak_flops: float = 1e12
    prefill_rate: float = 1e5
    train_rate: float = 1e4
    sync: float = 0.0
    move: float = 0.0

    def decode_s(self, n_rows: int, context_tokens: int, n_adapters: int = 0) -> float:
        return 1e-3 + 1e-6 * n_rows + 1e-9 * context_tokens

    def prefill_s(
        self, n_tokens: int, context_tokens: int = 0, n_adapters: int = 0, n_samples: int = 1
    ) -> float:
        return n_tokens / self.prefill_rate

    def train_s(self, n_tokens: int, n_samples: int) -> float:
        return n_tokens / self.train_rate

    def reference_s(self, n_tokens: int, n_samples: int = 1) -> float:
        return n_tokens / self.train_rate / 3

    def sync_s(self) -> float:
        return self.sync

    def offload_s(self) -> float:
        return self.move

    def load_s(self) -> float:
        return self.move

    def flops(self, n_forward: int, n_backward: int = 0) -> float:
        return 1e6 * (n_forward + 2 * n_backward)


class SimpleCosts:
    """``costs_of`` of ``Simple``."""

    def __init__(self, **changes: Any) -> None:
        self._base = Simple(**changes)

    def __call__(
        self, model: str, device: str, n: int, *, weights: str = "full", replicas: int = 1
    ) -> Simple:
        if device != "unit":
            raise ConfigError(f"unknown device {device!r}: choose unit")
        return replace(self._base, n=n, replicas=replicas, memory_bytes=n * self._base.memory_bytes)


def fixed(n: int) -> Lengths:
    return Lengths(kind="fixed", median=n)


def job(name: str = "a", **changes: Any) -> JobSpec:
    """One of two groups of two samples, 10 tokens of prompt and 100 of response."""
    spec = JobSpec(
        name=name, model="m", groups=2, samples=2, steps=3, prompt=fixed(10), response=fixed(100)
    )
    return replace(spec, **changes)


def setting(*jobs: JobSpec, devices: int = 2, groups: int = 1, **options: Any) -> Setting:
    return Setting(
        cluster=Cluster(
            groups=tuple(
                DeviceGroup(name=f"g{i}", device="unit", n_devices=devices) for i in range(groups)
            )
        ),
        jobs=jobs,
        options=options,
    )
