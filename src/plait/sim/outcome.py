"""Outcome: what a simulation gives back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.core.substages import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one device's time."""

    device: str
    """Of a slice: its worker's name; it counts ``n_devices`` times."""
    n_devices: int
    kind: Kind
    job: str
    """Empty where several jobs' samples decode together."""
    t0: float
    t1: float
    flops: float = 0.0
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """One job: when it came, and when each of its steps ended."""

    name: str
    arrival_s: float
    began_s: float
    """When it was first served."""
    step_ends_s: tuple[float, ...]
    tokens: int
    """Prompt and response tokens of all its steps."""
    waits_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by reason."""
    finished_s: float = 0.0
    """End of its last step, or of an evaluation after it; 0 where there was none of either."""
    max_lag: int = 0
    """Most versions that a batch was behind the one that it updated."""
    ended: str = "done"
    """``done``, ``cancelled``, or ``unfinished`` where the simulation was stopped before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished simulation."""

    scheme: str
    jobs: tuple[JobOutcome, ...]
    n_devices: int
    peak_flops: float
    """Of all devices."""
    spans: Sequence[Span] = ()
    busy_device_s: float = 0.0
    flops: float = 0.0
    switch_s: float = 0.0
    """Device seconds spent on moving state."""
    brought_device_s: float = 0.0
    """Device seconds of rollout pools that jobs brought along; not in ``n_devices``."""
    n_events: int = 0
    n_decisions: int = 0

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the end of the last step or evaluation."""
        ends = [max(job.finished_s, *job.step_ends_s[-1:]) for job in self.jobs if job.step_ends_s]
        return max(ends, default=0.0) - min((job.arrival_s for job in self.jobs), default=0.0)

    @property
    def mfu(self) -> float:
        """FLOPs done over what all devices could have done meanwhile."""
        brought = self.brought_device_s / self.n_devices
        whole = self.peak_flops * (self.makespan_s + brought)
        return self.flops / whole if whole > 0 else 0.0

    @property
    def utilisation(self) -> float:
        """Share of device time in which something ran."""
        whole = self.n_devices * self.makespan_s + self.brought_device_s
        return self.busy_device_s / whole if whole > 0 else 0.0
