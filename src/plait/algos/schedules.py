"""Learning-rate schedules: the rate of each step, a pure function of its number."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_at(
    step: int,
    *,
    peak: float,
    warmup_steps: int = 0,
    schedule: Schedule = "constant",
    total_steps: int | None = None,
) -> float:
    """Rate of ``step`` (from 1). It rises linearly to ``peak`` at step ``warmup_steps``; after that
    ``linear`` and ``cosine`` fall, and would reach 0 at the step after ``total_steps``, so that no
    step is spent at rate 0."""
    if step < 1:
        raise ValueError(f"steps count from 1, not {step}")
    if step <= warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    if total_steps is None:
        raise ValueError(f"schedule {schedule} needs total_steps")
    first = max(1, warmup_steps)
    done = min(1.0, (step - first) / (total_steps + 1 - first))
    return peak * (1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done)))
