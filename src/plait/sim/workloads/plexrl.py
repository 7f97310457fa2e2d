"""PlexRL's settings (arXiv 2605.20863): full-weight jobs that share a training pool.

Each job has a private rollout pool with few copies of the model; the pool for training is shared
by ``k`` jobs. Device kind and numbers are not in the text that survives: pools are sized by memory
(``make``), and H100 is taken.
"""

from typing import Any

from plait.core.errors import ConfigError
from plait.sim.costs.names import pick
from plait.sim.spec import Cluster, JobSpec, Setting
from plait.sim.workloads.assumptions import PLEXRL_GROUP, PLEXRL_PROMPTS, PLEXRL_STALENESS
from plait.sim.workloads.make import (
    job,
    node_group,
    rollout_devices,
    tensor_parallel,
    training_devices,
)

SIZES = {"7b": "qwen2.5-7b", "30b": "qwen3-30b-a3b", "235b": "qwen3-235b-a22b"}
"""Fig. 7: 7B, 30B and 235B; the models of these sizes in the Qwen family."""

DEVICE = "h100"
STEPS = 20


def shared_pool(size: str, k: int, *, steps: int = STEPS, **fields: Any) -> Setting:
    """``k`` jobs with private rollout pools on one training pool (Fig. 7b), in one node group.

    ``k = 1`` is a job on devices of its own.
    """
    if k < 1:
        raise ConfigError(f"{k} jobs on a pool: give at least 1")
    model = pick("size of PlexRL", size, SIZES)
    jobs = tuple(_job(f"{size}-{i}", model, steps=steps, **fields) for i in range(k))
    n = jobs[0].train_devices + sum(spec.rollout_devices for spec in jobs)
    return Setting(cluster=Cluster(groups=(node_group("pool", DEVICE, n),)), jobs=jobs)


def colocated(size: str, *, steps: int = STEPS, **fields: Any) -> Setting:
    """One job that rolls out on all devices it trains on: large data-parallel (Fig. 2, 7c).

    It has as many devices as a job of ``shared_pool`` and its whole training pool.
    """
    model = pick("size of PlexRL", size, SIZES)
    n = training_devices(model, DEVICE) + rollout_devices(model, DEVICE)
    given = {"steps": steps, "rollout_devices": 0, "train_devices": n, **fields}
    group = node_group("all", DEVICE, n)
    return Setting(cluster=Cluster(groups=(group,)), jobs=(_job(size, model, **given),))


def saving_ceiling(setting: Setting) -> float:
    """What ``k`` jobs on one pool can save at most of their devices: (1 − 1/k) · T / (R + T)."""
    k = len(setting.jobs)
    train, rollout = setting.jobs[0].train_devices, setting.jobs[0].rollout_devices
    return (1.0 - 1.0 / k) * train / (rollout + train)


def _job(name: str, model: str, **fields: Any) -> JobSpec:
    usual: dict[str, Any] = {
        "weights": "full",
        "pipeline": "one-step",
        "staleness": PLEXRL_STALENESS,
        "groups": PLEXRL_PROMPTS,
        "samples": PLEXRL_GROUP,
        "rollout_devices": rollout_devices(model, DEVICE),
        "train_devices": training_devices(model, DEVICE),
        "tensor_parallel": tensor_parallel(model, DEVICE),
        "tenant": name,
    }
    return job(name, model, "long-math", **{**usual, **fields})
