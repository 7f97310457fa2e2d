"""Checks: what is wrong with a setting by itself, whatever the scheme and the costs.

What cannot fit the devices is refused where they are divided (``slices``, ``placer``).
"""

from math import isfinite

from plait.core.errors import ConfigError
from plait.sim.bounds import check_bounds
from plait.sim.lengths import check_lengths
from plait.sim.options import check_options
from plait.sim.spec import JobSpec, Lengths, RecordedStep, Setting


def check(setting: Setting) -> None:
    """ConfigError if the setting makes no sense by itself."""
    if not setting.jobs or not setting.cluster.groups:
        raise ConfigError("a simulation needs at least one job and one node group")
    for group in setting.cluster.groups:
        if group.n_devices < 1:
            raise ConfigError(f"node group {group.name}: n_devices must be at least 1")
    for what, names in (
        ("job", [spec.name for spec in setting.jobs]),
        ("node group", [group.name for group in setting.cluster.groups]),
    ):
        twice = [name for name in names if names.count(name) > 1] if len(names) < 100 else []
        if twice or len(set(names)) < len(names):
            raise ConfigError(f"two {what}s have the same name: give each its own")
    for spec in setting.jobs:
        _check_job(spec)
    check_bounds(setting)
    check_options(setting.options)


def _check_job(spec: JobSpec) -> None:
    counts = {
        "groups": spec.groups,
        "samples": spec.samples,
        "steps": spec.steps,
        "train_devices": spec.train_devices,
        "tensor_parallel": spec.tensor_parallel,
    }
    for name, n in counts.items():
        if n < 1:
            raise ConfigError(f"job {spec.name}: {name} is {n}, it must be at least 1")
    tool = spec.tool
    amounts = {
        "arrival_s": spec.arrival_s,
        "reward_s": spec.reward_s,
        "slack": spec.slack,
        "weight": spec.weight,
        "staleness": spec.staleness,
        "rollout_devices": spec.rollout_devices,
        "tool.latency_s": tool.latency_s if tool is not None else 0.0,
        "tool.slots": tool.slots if tool is not None else 0,
    }
    for name, amount in amounts.items():
        if not isfinite(amount) or amount < 0:
            raise ConfigError(f"job {spec.name}: {name} is {amount}, it cannot be below 0")
    if tool is not None and not 0 <= tool.jitter <= 1:
        raise ConfigError(f"job {spec.name}: tool.jitter is {tool.jitter}, give 0 to 1")
    if not spec.turns or min(spec.turns) < 0 or sum(spec.turns) <= 0:
        raise ConfigError(f"job {spec.name}: turns must be probabilities of 1, 2, … turns")
    for name, part in (("rollout", spec.rollout_devices), ("train", spec.train_devices)):
        if spec.weights == "full" and part % spec.tensor_parallel:
            raise ConfigError(
                f"job {spec.name}: {name}_devices ({part}) must be a multiple of tensor_parallel "
                f"({spec.tensor_parallel})"
            )
    for name, lengths in (("prompt", spec.prompt), ("response", spec.response)):
        _check_drawn(f"job {spec.name}: {name}", lengths)
    if tool is not None and tool.result is not None:
        _check_drawn(f"job {spec.name}: tool.result", tool.result)
    for i, step in enumerate(spec.recorded):
        check_recorded(f"job {spec.name}: recorded[{i}]", step)


def check_recorded(where: str, step: RecordedStep) -> None:
    """ConfigError if a recorded step's parts do not belong together, or are no amounts."""
    n = len(step.responses)
    whole = n and all(step.responses) and len(step.waits_s) == n
    if not whole or not step.prompts or n % len(step.prompts):
        raise ConfigError(
            f"{where}: its prompts, responses and waits do not belong together: record it again"
        )
    if len(step.results) != n:
        raise ConfigError(
            f"{where}: its responses and results do not belong together: record it again"
        )
    for turns, waits_s, results in zip(step.responses, step.waits_s, step.results, strict=True):
        if len(waits_s) not in (len(turns) - 1, len(turns)) or len(results) < len(turns) - 1:
            raise ConfigError(
                f"{where}: a sample has other turns than waits or results: record it again"
            )
        for value in (*turns, *waits_s, *results):
            _amount(where, value)
    for value in (*step.prompts, step.reward_s, step.trained_tokens or 0):
        _amount(where, value)


def _amount(where: str, value: float) -> None:
    if not (isfinite(value) and value >= 0):
        raise ConfigError(f"{where} is {value!r}: give 0 or more")


def _check_drawn(where: str, lengths: Lengths) -> None:
    check_lengths(where, lengths)
    if lengths.kind in ("fixed", "lognormal") and lengths.median <= 0:
        raise ConfigError(f"{where} of kind {lengths.kind}: give a median above 0")
