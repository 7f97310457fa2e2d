"""Stretch: a part of a run's step on one slice that is of one kind: of its rollout as it went, or
of its update as it is to go (``Phase``)."""

from dataclasses import dataclass

from plait.core.substages import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A sub-stage as it went, or is expected to go."""

    kind: Kind
    work_s: float
    """Alone; of a tool wait, as long as it was."""
    n_samples: int
    context: int


@dataclass(slots=True, kw_only=True)
class Phase:
    """Reference or training of its part of a batch."""

    kind: Kind
    seconds: float
    flops: float
    memory_bytes: int
    n_samples: int
    tokens: int
