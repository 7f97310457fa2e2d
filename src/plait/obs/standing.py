"""Standing: the last figures of a job by its own account, those of an earlier life included."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from plait.obs import shapes
from plait.obs.jsonl import read_jsonl
from plait.obs.layout import JobLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """``None`` where there is no figure yet."""

    reward: float | None = None
    """Mean of the last step."""
    step_s: float | None = None
    """How long that took."""
    eval_reward: float | None = None
    """Mean of the last held-out evaluation."""

    def after(self, row: Mapping[str, Any]) -> "Standing":
        """The same with one more row of ``metrics.jsonl``."""
        if "eval_n" in row:
            return replace(self, eval_reward=row.get("eval_reward_mean"))
        return replace(self, reward=row.get("reward_mean"), step_s=row.get("step_s"))


def read_standing(layout: JobLayout, last_step: float = inf) -> Standing:
    """What a job's file tells of its steps up to ``last_step``."""
    standing = Standing()
    for row in read_jsonl(layout.metrics, shapes.metrics):
        if row["step"] <= last_step:
            standing = standing.after(row)
    return standing
