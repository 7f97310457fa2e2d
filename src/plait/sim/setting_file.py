"""Setting files: a setting as JSON and back, checked.

Checked is what would otherwise fail late or be wrong in silence: names, numbers below 0, jobs that
no node group can hold. Fields that nobody knows are refused.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from plait.core.errors import ConfigError
from plait.sim.bounds import check_bounds
from plait.sim.checks import check_recorded
from plait.sim.costs.attained import attained
from plait.sim.costs.devices import device_of
from plait.sim.costs.models import model_of
from plait.sim.costs.names import pick
from plait.sim.lengths import MOST_TURNS, check_lengths
from plait.sim.options import check_options
from plait.sim.rebuild import rebuild
from plait.sim.spec import (
    Cluster,
    DeviceGroup,
    JobSpec,
    Lengths,
    Pipeline,
    RecordedStep,
    Setting,
    Tool,
)

VERSION = 1

T = TypeVar("T")

WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a name",
    bool: "true or false",
}
"""Of the types that a plain field may have."""

COUNTS = ("groups", "samples", "steps", "train_devices", "tensor_parallel")
"""Whole numbers of a job from 1 on."""
NOT_NEGATIVE = ("reward_s", "arrival_s", "slack", "staleness", "rollout_devices", "limit")


def write_setting(setting: Setting, file: Path) -> None:
    """The setting as JSON."""
    file.write_text(json.dumps({"version": VERSION, **asdict(setting)}, indent=1) + "\n")


def read_setting(file: Path) -> Setting:
    """The setting in ``file``, checked; ConfigError names the wrong field."""
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {file} ({error}): give a setting as JSON") from error
    if not isinstance(data, dict) or data.get("version") != VERSION:
        version = data.get("version") if isinstance(data, dict) else None
        raise ConfigError(f"{file} is of version {version!r}, not {VERSION}: write it again")
    return setting_from({name: value for name, value in data.items() if name != "version"})


def setting_from(data: Mapping[str, Any]) -> Setting:
    """The setting that ``data`` (as of ``asdict``) says, checked."""
    whole = dict(data)
    cluster = _mapping("cluster", whole.pop("cluster", None))
    for name in cluster:
        pick("field of cluster", name, {"groups": True})
    for name in ("options", "constants"):
        _mapping(name, whole.get(name, {}))
    groups = tuple(
        _build(DeviceGroup, f"cluster.groups[{i}]", group)
        for i, group in enumerate(_list("cluster.groups", cluster.get("groups")))
    )
    jobs = tuple(_job(i, job) for i, job in enumerate(_list("jobs", whole.pop("jobs", None))))
    setting = _build(Setting, "setting", {"cluster": Cluster(groups=groups), "jobs": jobs, **whole})
    check_setting(setting)
    return setting


def check_setting(setting: Setting) -> None:
    """ConfigError if the setting cannot be simulated."""
    groups = setting.cluster.groups
    if not groups or not setting.jobs:
        raise ConfigError("a setting needs at least one node group and one job")
    _unique("node group", [group.name for group in groups])
    _unique("job", [spec.name for spec in setting.jobs])
    for group in groups:
        device = device_of(group.device)
        _at_least(f"{group.name}.n_devices", group.n_devices, 1)
        _at_least(f"{group.name}.host_bytes", group.host_bytes, 0)
        attained(device.family, setting.constants)
    check_bounds(setting)
    check_options(setting.options)
    most = max(group.n_devices for group in groups)
    for spec in setting.jobs:
        check_job(spec)
        needed = spec.train_devices + spec.rollout_devices
        if needed > most:
            raise ConfigError(
                f"{spec.name} needs {needed} devices, the largest node group has {most}: "
                "it would wait for ever"
            )


def check_job(spec: JobSpec) -> None:
    """ConfigError if the job cannot be simulated on any cluster."""
    model_of(spec.model)
    for name in COUNTS:
        _at_least(f"{spec.name}.{name}", getattr(spec, name), 1)
    for name in NOT_NEGATIVE:
        _at_least(f"{spec.name}.{name}", getattr(spec, name), 0)
    if not (isfinite(spec.weight) and spec.weight > 0):
        raise ConfigError(f"{spec.name}.weight is {spec.weight}: give a positive number")
    pick("weights", spec.weights, {"lora": True, "full": True})
    pick("pipeline", spec.pipeline, dict.fromkeys(get_args(Pipeline), True))
    if spec.tensor_parallel > spec.train_devices:
        raise ConfigError(
            f"{spec.name}: tensor_parallel {spec.tensor_parallel} is more than its "
            f"{spec.train_devices} train_devices"
        )
    check_lengths(f"{spec.name}.prompt", spec.prompt)
    check_lengths(f"{spec.name}.response", spec.response)
    if not 1 <= len(spec.turns) <= MOST_TURNS:
        raise ConfigError(f"{spec.name}.turns: give 1 to {MOST_TURNS} probabilities")
    for share in spec.turns:
        _at_least(f"{spec.name}.turns", share, 0)
    if sum(spec.turns) <= 0:
        raise ConfigError(f"{spec.name}.turns: give at least one positive probability")
    if (tool := spec.tool) is not None:
        _at_least(f"{spec.name}.tool.latency_s", tool.latency_s, 0)
        _at_least(f"{spec.name}.tool.slots", tool.slots, 0)
        if not 0 <= tool.jitter <= 1:
            raise ConfigError(f"{spec.name}.tool.jitter is {tool.jitter}: give 0 to 1")
        if tool.result is not None:
            check_lengths(f"{spec.name}.tool.result", tool.result)


def _job(i: int, data: Any) -> JobSpec:
    where = f"jobs[{i}]"
    given = dict(_mapping(where, data))
    for name in ("prompt", "response"):
        if name in given:
            given[name] = _lengths(f"{where}.{name}", given[name])
    if given.get("tool") is not None:
        tool = dict(_mapping(f"{where}.tool", given["tool"]))
        if tool.get("result") is not None:
            tool["result"] = _lengths(f"{where}.tool.result", tool["result"])
        given["tool"] = _build(Tool, f"{where}.tool", tool)
    if "turns" in given:
        given["turns"] = tuple(_list(f"{where}.turns", given["turns"]))
    if "recorded" in given:
        steps = _list(f"{where}.recorded", given["recorded"])
        given["recorded"] = tuple(
            _recorded(f"{where}.recorded[{i}]", step) for i, step in enumerate(steps)
        )
    return _build(JobSpec, where, given)


def _recorded(where: str, data: Any) -> RecordedStep:
    try:
        step = rebuild(RecordedStep, data)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} is no recorded step ({error}): record it again") from None
    check_recorded(where, step)
    return step


def _lengths(where: str, data: Any) -> Lengths:
    given = dict(_mapping(where, data))
    if "values" in given:
        given["values"] = tuple(_list(f"{where}.values", given["values"]))
        for value in given["values"]:
            _at_least(f"{where}.values", value, 0)
    return _build(Lengths, where, given)


def _build(kind: type[T], where: str, data: Any) -> T:
    given = _mapping(where, data)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name, value in given.items():
        pick(f"field of {where}", name, known)
        _typed(f"{where}.{name}", value, known[name].type)
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where} has no {name}: give one")
    return kind(**given)


def _typed(where: str, value: Any, wanted: Any) -> None:
    """ConfigError if a plain field is of another type than ``wanted``; others have own checks."""
    if get_origin(wanted) is Literal:
        pick(where, str(value), dict.fromkeys(get_args(wanted), True))
    elif wanted in WORDS:
        kinds = (int, float) if wanted is float else (wanted,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and wanted is not bool):
            raise ConfigError(f"{where} is {value!r}: give {WORDS[wanted]}")


def _mapping(where: str, data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {_shown(data)}: give a mapping of names to values")
    return data


def _list(where: str, data: Any) -> list[Any]:
    if not isinstance(data, (list, tuple)):
        raise ConfigError(f"{where} is {_shown(data)}: give a list")
    return list(data)


def _shown(data: Any) -> str:
    if data is None:
        return "not there"
    kind = "a list" if isinstance(data, (list, tuple)) else "a mapping"
    return kind if isinstance(data, (list, tuple, Mapping)) else repr(data)


def _at_least(where: str, value: Any, least: int) -> None:
    right = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (right and isfinite(value) and value >= least):
        raise ConfigError(f"{where} is {value!r}: give {least} or more")


def _unique(what: str, names: list[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(f"{times} {what}s are called {name!r}: give each a name of its own")
