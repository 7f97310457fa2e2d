"""Make: jobs from task and model, and pools from what a model needs."""

from dataclasses import replace
from math import ceil, log2
from typing import Any

from plait.sim.costs.devices import device_of
from plait.sim.costs.models import model_of
from plait.sim.costs.names import pick
from plait.sim.spec import DeviceGroup, JobSpec
from plait.sim.workloads.assumptions import (
    HOST_BYTES,
    ROLLOUT_COPIES,
    ROOM,
    STATE_BYTES,
    TASKS,
    WEIGHT_SHARE,
    response_of,
)


def job(name: str, model: str, task: str, **fields: Any) -> JobSpec:
    """A job on a task of ``assumptions.TASKS``; ``fields`` are those of ``JobSpec``."""
    does = pick("task", task, TASKS)
    spec = JobSpec(
        name=name,
        model=model,
        prompt=does.prompt,
        response=response_of(task, model, model_of(model).n_params),
        turns=does.turns,
        tool=does.tool,
        reward_s=does.reward_s,
    )
    return replace(spec, **fields)


def node_group(name: str, device: str, n_devices: int) -> DeviceGroup:
    """Devices with the host memory of as many nodes as they fill."""
    nodes = ceil(n_devices / device_of(device).devices_per_node)
    return DeviceGroup(name=name, device=device, n_devices=n_devices, host_bytes=nodes * HOST_BYTES)


def tensor_parallel(model: str, device: str) -> int:
    """The fewest devices, a power of two, of which a copy's weights take half at most."""
    kind = device_of(device)
    weights = model_of(model).n_params * kind.weight_width_bytes
    return _power(weights / (WEIGHT_SHARE * kind.memory_bytes))


def training_devices(model: str, device: str) -> int:
    """Devices of a full-weight run's training pool: whole copies, room for the state twice."""
    state = ROOM * STATE_BYTES * model_of(model).n_params / device_of(device).memory_bytes
    return max(_power(state), tensor_parallel(model, device))


def rollout_devices(model: str, device: str) -> int:
    """Devices of its private rollout pool."""
    return ROLLOUT_COPIES * tensor_parallel(model, device)


def _power(least: float) -> int:
    return 1 << max(0, ceil(log2(max(least, 1.0))))
