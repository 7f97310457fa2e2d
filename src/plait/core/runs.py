"""Runs: one policy being trained, its adapter and where it stands.

A run is what outlives processes: ``(run_id, version)`` names a policy for ever.
Versions are monotone.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from plait.core.ids import RunId, TenantId

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
HEAD = "lm_head"
"""The output layer. Tinker names the three ``train_attn``, ``train_mlp`` and ``train_unembed``."""

ALL_LINEAR = (*ATTENTION, *MLP)
"""Every linear layer of a Llama-shaped block: the default LoRA targets."""
TARGETS = (*ALL_LINEAR, HEAD)
"""Everything that LoRA may change."""

MAX_RANK = 64
"""Largest LoRA rank that an engine need accept."""
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1
"""Of an adapter's first weights: what torch's generator takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec:
    """Shape of a LoRA adapter: ``W + (alpha / rank) · B A`` on each target module."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ALL_LINEAR
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What is fixed about a run from its creation on."""

    run_id: RunId
    tenant_id: TenantId
    base_model: str
    lora: LoraSpec = field(default_factory=LoraSpec)
    weight: float = 1.0
    priority: int = 0
    max_staleness: int = 0


class Stage(StrEnum):
    """Where a run is in its step; what the policies see of it."""

    IDLE = "idle"
    WAIT_ROLLOUT = "wait_rollout"
    ROLLOUT = "rollout"
    REWARD = "reward"
    WAIT_TRAIN = "wait_train"
    TRAIN = "train"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True when the run will never ask for anything again."""
        return self in _ENDED


_ENDED = (Stage.DONE, Stage.FAILED, Stage.CANCELLED)
"""Looked up once: an enum's members cost more to name than to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One committed policy of a run: durable on disk under ``path`` before anyone can see it."""

    run_id: RunId
    version: int
    seq: int
    path: str
