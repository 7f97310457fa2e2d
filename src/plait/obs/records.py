"""Records: the rows of a launch's logs.

Frozen values; ``as_row`` is the only way from them to JSON. Rows carry no time of their own where
the recorder stamps them (``t``: seconds of the launch's running time, downtime before a resume
left out).
"""

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from plait.core.ids import RunId, WorkerId

DECISIONS_VERSION = 1
"""Of the lines of ``decisions.jsonl``: what they say, and how views and plans look. To be raised
when a policy would be told something else under the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchInfo:
    """What ``launch.json`` says: written at the start, again when a job joins."""

    policy: str
    model: str
    started_at: float
    """Seconds since the epoch."""
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    """What the policy was made with, where it differs from its defaults."""
    jobs: tuple[str, ...] = ()
    """In order of joining."""
    versions: Mapping[str, str]
    """Of plait, Python, torch, …"""
    machine: Mapping[str, Any]
    """``cores``, ``memory_bytes``, ``device``, …"""
    peak_flops: float = 0.0
    """Measured dense matrix-product rate of the whole machine, FLOP/s; 0 where unknown."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one worker's time on the runtime's clock.

    One run's work names ``run``; a batch over several runs gives ``tokens_by_run`` instead.
    """

    worker: WorkerId
    kind: str
    t0: float
    t1: float
    run: RunId | None = None
    tokens: int = 0
    tokens_by_run: Mapping[RunId, int] = field(default_factory=dict)
    threads: float = 0.0
    """Cores held on average; 0 on a device that has none."""
    flops: float = 0.0
    steps: int = 0
    n_running: int = 0
    n_waiting: int = 0
    n_preempted: int = 0
    kv_blocks_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One training step of one job. ``None``: does not apply. ``*_s`` are seconds of wall time."""

    step: int
    version: int
    reward_mean: float | None
    reward_n: int
    """Samples with a reward; those whose grader failed are in ``reward_errors`` alone."""
    reward_errors: int
    groups: int
    groups_skipped: int
    """Groups without a signal, and groups lost to errors."""
    tokens_sampled: int
    loss: float | None
    grad_norm: float | None
    lr: float
    staleness: int = 0
    kl: float | None = None
    sampler_trainer_logprob_max_diff: float | None = None
    rollout_s: float = 0.0
    reward_s: float = 0.0
    reference_s: float = 0.0
    train_s: float = 0.0
    publish_s: float = 0.0
    wait_s: float = 0.0
    step_s: float = 0.0
    extra: Mapping[str, float] = field(default_factory=dict)
    """An algorithm's own figures; each becomes a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Held-out reward after ``step`` steps, with its 95 % interval."""

    step: int
    eval_reward_mean: float | None
    eval_n: int
    eval_ci95_low: float | None
    eval_ci95_high: float | None
    eval_errors: int = 0
    eval_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One sample and why it got what it got. An error is never a reward."""

    step: int
    index: int
    """Problem."""
    group: int
    prompt: str
    completion: str
    reward: float | None
    error: str | None
    why: str
    stop_reason: str
    n_turns: int
    version: int | None
    split: str = "train"
    prompt_tokens: int = 0
    turn_tokens: tuple[int, ...] = ()
    """Drawn in each turn."""
    reply_tokens: tuple[int, ...] = ()
    """That the environment answered with, between turns."""


def as_row(record: Any) -> dict[str, Any]:
    """A record as JSON values; ``extra`` becomes columns of its own."""
    row = {f.name: plain(getattr(record, f.name)) for f in dataclasses.fields(record)}
    extra = row.pop("extra", {})
    return {**extra, **row}


def plain(value: Any) -> Any:
    """Any value of the core (a view, a plan) as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_row(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Set | Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value
