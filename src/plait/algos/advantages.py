"""Advantages: how much better a sample did than what it is compared with. One number per sample.

``rewards_PG`` holds the groups of one step (P prompts, G samples each; groups may differ in size).
``None`` is a sample without a reward (its environment or grader failed): it takes no part in any
statistic, and its advantage is ``None``. A sample with nothing to be compared with gets 0. Where
all rewards compared are equal the advantages are exactly 0, not the noise of a mean.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from plait.core.errors import RewardError

GRPO_EPS = 1e-4
"""Added to the standard deviation; TRL's value, so that one step here equals one step there."""

Rewards = Sequence[Sequence[float | None]]
Advantages = tuple[tuple[float | None, ...], ...]
_Array = npt.NDArray[np.float64]


def grpo(rewards_PG: Rewards) -> Advantages:
    """``(r - mean) / (std + eps)`` within the group (DeepSeekMath, arXiv 2402.03300 §4.1).

    The standard deviation is the sample's (divisor G-1), as in TRL."""
    return _per_group(rewards_PG, lambda r: (r - r.mean()) / (r.std(ddof=1) + GRPO_EPS))


def dr_grpo(rewards_PG: Rewards) -> Advantages:
    """``r - mean`` within the group: no division by the deviation, which favours questions that are
    too easy or too hard (Dr. GRPO, arXiv 2503.20783 §3.1)."""
    return _per_group(rewards_PG, lambda r: r - r.mean())


def rloo(rewards_PG: Rewards) -> Advantages:
    """``r_i - mean of the others`` within the group (RLOO, arXiv 2402.14740 §2.2)."""
    return _per_group(rewards_PG, lambda r: r - (r.sum() - r) / (len(r) - 1))


def reinforce_pp(rewards_PG: Rewards) -> Advantages:
    """``(r - mean) / (std + eps)`` over the whole batch (REINFORCE++, arXiv 2501.03262 §3), taken
    over samples, not weighted by their lengths; its KL term is in the loss, not in the reward."""
    scored = _scored([r for group in rewards_PG for r in group])
    if len(scored) < 2 or np.ptp(scored) == 0:
        return _zeros(rewards_PG)
    mean, scale = scored.mean(), scored.std() + GRPO_EPS
    return tuple(
        tuple(None if r is None else float((r - mean) / scale) for r in group)
        for group in rewards_PG
    )


def _per_group(rewards_PG: Rewards, formula: Callable[[_Array], _Array]) -> Advantages:
    out: list[tuple[float | None, ...]] = []
    for group in rewards_PG:
        scored = _scored(group)
        if len(scored) < 2 or np.ptp(scored) == 0:
            out.extend(_zeros([group]))
            continue
        values = iter(formula(scored).tolist())
        out.append(tuple(None if r is None else float(next(values)) for r in group))
    return tuple(out)


def _scored(rewards: Sequence[float | None]) -> _Array:
    scored = [r for r in rewards if r is not None]
    if not all(math.isfinite(r) for r in scored):
        raise RewardError("a reward is not finite: return a finite number, or None for no reward")
    return np.asarray(scored, dtype=np.float64)


def _zeros(rewards_PG: Rewards) -> Advantages:
    return tuple(tuple(None if r is None else 0.0 for r in group) for group in rewards_PG)
