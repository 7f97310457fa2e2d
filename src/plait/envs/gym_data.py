"""Gym data: reasoning-gym's datasets by name, and scoring an answer to an item.

Some scorers evaluate the policy's text (sympy), so ``score`` runs in a ``RewardPool`` process.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from plait.core.errors import ConfigError
from plait.sections import nearest

SCORE = "plait.envs.gym_data:score"


def reward_prepare() -> None:
    """Import what takes seconds before the first deadline runs."""
    import reasoning_gym  # noqa: F401


def make_dataset(name: str, params: Mapping[str, Any], *, seed: int, size: int) -> Any:
    """The dataset; ConfigError if there is none of that name or a parameter is wrong."""
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ModuleNotFoundError as error:
        raise ConfigError("reasoning-gym is not installed: pip install 'plait[envs]'") from error
    if name not in DATASETS:
        raise ConfigError(f"reasoning-gym has no dataset {name}: {nearest(name, DATASETS)}")
    known = {f.name for f in fields(DATASETS[name][1])} - {"seed", "size"}
    for key in params:
        if key not in known:
            hint = nearest(key, sorted(known))
            raise ConfigError(f"reasoning-gym's {name} has no parameter {key}: {hint}")
    try:
        return create_dataset(name, seed=seed, size=size, **_converted(name, params))
    except (AssertionError, ValueError, TypeError) as error:
        raise ConfigError(f"reasoning-gym's {name} refused its parameters: {error}") from error


def score(name: str, params_json: str, entry: Mapping[str, Any], answer: str | None) -> float:
    """The dataset's own score of ``answer`` to its item ``entry``."""
    return float(_scorer(name, params_json).score_answer(answer, entry))


@functools.lru_cache(maxsize=8)
def _scorer(name: str, params_json: str) -> Any:
    return make_dataset(name, json.loads(params_json), seed=0, size=1)


def _converted(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """``composite`` wants objects where a job file has mappings."""
    if name != "composite" or "datasets" not in params:
        return dict(params)
    from reasoning_gym.composite import DatasetSpec

    specs = [
        DatasetSpec(name=d["name"], weight=d.get("weight", 1.0), config=d.get("config", {}))
        for d in params["datasets"]
    ]
    return {**params, "datasets": specs}
