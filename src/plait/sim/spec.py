"""Spec: what a simulation is given — a cluster and its jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Pipeline = Literal["sync", "one-step", "async"]
"""Strictly on-policy; rollout one step ahead (StreamRL); up to ``staleness`` ahead (AReaL)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of token counts: ``kind`` with its parameters, cut to ``least … most``.

    ``fixed`` (value), ``lognormal`` (median, sigma), ``uniform``, ``empirical`` (values).
    """

    kind: Literal["fixed", "lognormal", "uniform", "empirical"]
    least: int = 1
    most: int = 8192
    median: float = 0.0
    sigma: float = 0.0
    values: tuple[int, ...] = ()
    drift: float = 0.0
    """Relative change per training step, as the policy learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool or an environment between turns."""

    latency_s: float
    jitter: float = 0.0
    """Relative, uniform."""
    result: Lengths | None = None
    """Tokens that it returns."""
    blocked: bool = False
    """Called once for all samples of a step (a replica's), when each has asked."""
    slots: int = 0
    """Calls at once; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """The work of one step as it was recorded, in place of a draw; samples in group order."""

    prompts: tuple[int, ...]
    """Of each group."""
    responses: tuple[tuple[int, ...], ...]
    """Of each sample, by turn."""
    waits_s: tuple[tuple[float, ...], ...]
    """Of each sample, after each of its turns: the last turn too, whose end is waited for."""
    results: tuple[tuple[int, ...], ...]
    """Tokens that came back between turns."""
    reward_s: float = 0.0
    """Off the devices, after the rollout."""
    trained_tokens: int | None = None
    """``None``: all; 0: nothing was learned from it."""
    evaluates: bool = False
    """An evaluation: a rollout that nothing is learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job of a workload."""

    name: str
    model: str
    """A name that ``sim.costs`` knows, or a Hugging Face configuration file."""
    weights: Literal["lora", "full"] = "lora"
    pipeline: Pipeline = "sync"
    staleness: int = 0
    groups: int = 16
    samples: int = 4
    prompt: Lengths = field(default_factory=lambda: Lengths(kind="fixed", median=256))
    response: Lengths = field(default_factory=lambda: Lengths(kind="fixed", median=1024))
    """Of one turn."""
    turns: tuple[float, ...] = (1.0,)
    """Probability of 1, 2, … turns."""
    limit: int = 0
    """Tokens of all turns and tool results of a sample together; its last turn is cut. 0: none."""
    tool: Tool | None = None
    reward_s: float = 0.0
    """Verifier or judge, per step, off the devices."""
    reference: bool = False
    steps: int = 10
    arrival_s: float = 0.0
    weight: float = 1.0
    priority: int = 0
    tenant: str = "local"
    slack: float = 1.0
    """How much longer than alone a step may take, relative."""
    rollout_devices: int = 0
    """Private ones of a full-weight job; 0: rollout and training share all of its devices."""
    train_devices: int = 1
    tensor_parallel: int = 1
    seed: int = 0
    recorded: tuple[RecordedStep, ...] = ()
    """The first steps' work, where it is known; what follows is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Equal devices that work as one node group."""

    name: str
    device: str
    """A kind that ``sim.costs`` knows: h100, a100, h200, npu, cpu."""
    n_devices: int
    host_bytes: int = 2_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All node groups."""

    groups: tuple[DeviceGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that a simulation depends on, but for the scheme under test."""

    cluster: Cluster
    jobs: tuple[JobSpec, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the scheme."""
    constants: Mapping[str, float] = field(default_factory=dict)
    """Factors on named constants of the cost model, for sensitivity: ``{"prefill_mfu": 1.3}``."""
