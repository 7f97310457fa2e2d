"""Sub-stages: spans of a step with one resource profile, the unit of co-location (JigsawRL §4.1).

A run's step is a graph of them, one replica per data-parallel worker. Times are those of the
sub-stage alone with a whole worker.
"""

from dataclasses import dataclass
from enum import StrEnum

from plait.core.ids import RunId, WorkerId


class Kind(StrEnum):
    """What a sub-stage does; rollout by tokens per forward step."""

    DECODE = "decode"
    """Fewer than 128 tokens a step: bound by memory."""
    BATCH = "batch"
    """128 to 1023."""
    PREFILL = "prefill"
    """1024 and more: bound by compute."""
    TOOL = "tool"
    """Waits for a tool or an environment; needs no device."""
    REWARD = "reward"
    REFERENCE = "reference"
    TRAIN = "train"
    MOVE = "move"
    """Weights or optimizer on their way: sync, load, offload, migration."""

    @property
    def rolls_out(self) -> bool:
        """True for the three buckets of rollout."""
        return self in _ROLLS_OUT

    @property
    def on_device(self) -> bool:
        """False for what runs on CPUs or elsewhere."""
        return self not in _OFF_DEVICE


_ROLLS_OUT = (Kind.DECODE, Kind.BATCH, Kind.PREFILL)
_OFF_DEVICE = (Kind.TOOL, Kind.REWARD)
"""Looked up once: an enum's members cost more to name than to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Substage:
    """One sub-stage of one replica of a run's step."""

    key: str
    """Unique in its view, e.g. ``run/7/0/3``: run, step, replica, place."""
    run_id: RunId
    worker: WorkerId
    """The worker of its replica."""
    kind: Kind
    work_s: float
    """What is left of it, alone on the whole worker."""
    memory_bytes: int = 0
    """What it takes to run at full speed, weights that it needs resident included."""
    least_bytes: int = 0
    """The least that it can run with (smaller micro-batches, fewer sequences at once)."""
    tokens: int = 0
    """Per forward step, on average."""
    context: int = 0
    """Mean length of its sequences."""
    n_samples: int = 0
    after: tuple[str, ...] = ()
    """Keys of what must end before it may begin; those that have ended already are left out."""
