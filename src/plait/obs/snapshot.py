"""Snapshot: the present state of a launch as the live view shows it. Plain values, no handles."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """One job now."""

    name: str
    stage: str
    step: int
    max_steps: int | None = None
    version: int = 0
    reward: float | None = None
    """Mean of the last step."""
    eval_reward: float | None = None
    """Mean of the last held-out evaluation."""
    tpts_s: float | None = None
    tokens: int = 0
    wait: str = ""
    """What it waits for, in words; empty if it is being served."""
    position: int = 0
    """Place in the queue, from 1; 0 where there is none."""
    error: str = ""
    """Why it ended, where it ended badly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """One worker now."""

    name: str
    doing: str
    """Kind of work, or ``idle``."""
    jobs: tuple[str, ...] = ()
    """Whose work it is."""
    tokens_per_s: float = 0.0
    threads: int = 0
    busy_share: float = 0.0
    """Of the launch so far."""
    kv_blocks_used: int = 0
    kv_blocks: int = 0
    """Size of its cache; 0 where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A launch at ``t`` seconds of running time."""

    t: float
    policy: str
    model: str
    jobs: tuple[JobLine, ...] = ()
    workers: tuple[WorkerLine, ...] = ()
