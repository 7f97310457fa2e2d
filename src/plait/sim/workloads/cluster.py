"""Cluster traces: many full-weight (and LoRA) jobs that come over days or months, by a seed.

Arrivals are a Poisson process with a daily cycle. The n-th job is the same for every length of the
trace and every cluster that can hold it.
"""

from dataclasses import replace
from hashlib import blake2b
from math import cos, exp, isfinite, pi

import numpy as np

from plait.core.errors import ConfigError
from plait.sim.spec import Cluster, JobSpec, Setting
from plait.sim.workloads.assumptions import (
    BUSIEST_HOUR,
    DAILY_SWING,
    PLEXRL_GROUP,
    PLEXRL_STALENESS,
    SANDBOX,
    SEARCH_TURNS,
    TRACE_LENGTH_SIGMA,
    TRACE_MODELS,
    TRACE_PROMPTS,
    TRACE_STEPS,
    TRACE_STEPS_LIMITS,
    TRACE_STEPS_SIGMA,
    TRACE_TENANTS,
    TRACE_TOOLS_SHARE,
)
from plait.sim.workloads.make import (
    job,
    node_group,
    rollout_devices,
    tensor_parallel,
    training_devices,
)

DAY_S = 86_400.0
TWO_WEEKS, THREE_MONTHS = 14.0, 91.0
"""Days; PlexRL's trace (Fig. 8) spans three months."""


def trace(
    *,
    days: float = TWO_WEEKS,
    jobs_per_day: float = 20.0,
    n_groups: int = 8,
    group_devices: int = 64,
    device: str = "h100",
    private_rollout: bool = True,
    lora_share: float = 0.0,
    seed: int = 0,
) -> Setting:
    """Jobs of 3B to 32B on equal node groups.

    ``private_rollout``: full-weight jobs bring a rollout pool of their own and share their group
    for training (PlexRL); otherwise they roll out on the devices they train on.
    """
    for what, value in (("days", days), ("jobs_per_day", jobs_per_day)):
        if not (isfinite(value) and value > 0):
            raise ConfigError(f"{what} is {value}: give a positive number")
    if not 0.0 <= lora_share <= 1.0:
        raise ConfigError(f"lora_share is {lora_share}: give 0 to 1")
    if n_groups < 1 or group_devices < 1:
        raise ConfigError("a trace needs at least one group of at least one device")
    jobs: list[JobSpec] = []
    for i, arrival_s in enumerate(arrivals(days, jobs_per_day, seed)):
        spec = _job(i, seed, device, private_rollout, lora_share)
        needed = spec.train_devices + spec.rollout_devices
        if needed > group_devices:
            raise ConfigError(
                f"{spec.model} needs {needed} {device}, a group has {group_devices}: "
                f"give group_devices={needed} or more"
            )
        jobs.append(replace(spec, arrival_s=arrival_s))
    groups = tuple(node_group(f"group-{g}", device, group_devices) for g in range(n_groups))
    return Setting(cluster=Cluster(groups=groups), jobs=tuple(jobs))


def arrivals(days: float, jobs_per_day: float, seed: int) -> list[float]:
    """Seconds from midnight of the first day: thinned from a process at the busiest hour's rate."""
    rng, most = _rng(seed, "arrivals"), jobs_per_day * (1.0 + DAILY_SWING) / DAY_S
    times, now_s = [], 0.0
    while (now_s := now_s + rng.exponential(1.0 / most)) < days * DAY_S:
        hour = now_s % DAY_S / 3600.0
        rate = 1.0 + DAILY_SWING * cos(2.0 * pi * (hour - BUSIEST_HOUR) / 24.0)
        if rng.random() * (1.0 + DAILY_SWING) < rate:
            times.append(now_s)
    return times


def _job(i: int, seed: int, device: str, private_rollout: bool, lora_share: float) -> JobSpec:
    rng = _rng(seed, f"job-{i}")
    names, shares = list(TRACE_MODELS), np.array(list(TRACE_MODELS.values()))
    model = names[int(rng.choice(len(names), p=shares / shares.sum()))]
    least, most = TRACE_STEPS_LIMITS
    steps = round(TRACE_STEPS * exp(TRACE_STEPS_SIGMA * rng.standard_normal()))
    longer = exp(TRACE_LENGTH_SIGMA * rng.standard_normal() - TRACE_LENGTH_SIGMA**2 / 2.0)
    prompts = TRACE_PROMPTS[int(rng.integers(len(TRACE_PROMPTS)))]
    with_tools, lora = rng.random() < TRACE_TOOLS_SHARE, rng.random() < lora_share
    ranks = 1.0 / np.arange(1, TRACE_TENANTS + 1)
    tenant = int(rng.choice(TRACE_TENANTS, p=ranks / ranks.sum()))
    copy = tensor_parallel(model, device)
    spec = job(
        f"job-{i}",
        model,
        "long-math",
        weights="lora" if lora else "full",
        pipeline="one-step" if private_rollout and not lora else "sync",
        staleness=PLEXRL_STALENESS if private_rollout and not lora else 0,
        groups=prompts,
        samples=PLEXRL_GROUP,
        steps=min(max(steps, least), most),
        rollout_devices=rollout_devices(model, device) if private_rollout and not lora else 0,
        train_devices=copy if lora else training_devices(model, device),
        tensor_parallel=copy,
        tenant=f"user-{tenant}",
        seed=seed,
    )
    response = replace(spec.response, median=spec.response.median * longer)
    if with_tools:
        turns = sum(k * p for k, p in enumerate(SEARCH_TURNS, start=1))
        response = replace(response, median=response.median / turns)
        spec = replace(spec, turns=SEARCH_TURNS, tool=SANDBOX)
    return replace(spec, response=response)


def _rng(seed: int, what: str) -> np.random.Generator:
    digest = blake2b(f"{seed}/{what}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
