"""Sweep: variations of a setting, ``jobs=1,2,4`` or ``devices=8,16``.

``jobs``: so many jobs, the setting's own in order and then again, renamed and with other draws.
``devices``: devices of each node group. ``constants.NAME``, ``options.NAME``: a factor on a
constant of the cost model, an option of the simulation.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite

from plait.core.errors import ConfigError
from plait.sim.bounds import check_jobs
from plait.sim.costs.names import pick
from plait.sim.spec import Cluster, JobSpec, Setting

KINDS = ("jobs", "devices", "constants.NAME", "options.NAME")
MOST_CASES = 1000
"""Of one command; a larger sweep is a mistake in the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What is varied, and its values."""

    key: str
    values: tuple[float, ...]


def read_axis(text: str) -> Axis:
    """``KEY=V1,V2,…``; ConfigError says what is wrong."""
    key, equals, listed = text.partition("=")
    if not equals:
        raise ConfigError(f"--sweep {text!r} has no values: write it as jobs=1,2,4,8")
    where, dot, name = key.partition(".")
    if not (dot and name and where in ("constants", "options")):
        pick("--sweep", key, dict.fromkeys(KINDS, True))
    values = tuple(_number(key, word) for word in listed.split(","))
    if key in ("jobs", "devices") and any(v < 1 or v != int(v) for v in values):
        raise ConfigError(f"--sweep {key}: give whole numbers from 1 on")
    return Axis(key=key, values=values)


def variations(setting: Setting, axes: Sequence[Axis]) -> Iterator[tuple[str, Setting]]:
    """Every combination of the axes' values: what it is called (empty without axes), and it."""
    n = 1
    for axis in axes:
        n *= len(axis.values)
    if n > MOST_CASES:
        raise ConfigError(f"the sweep has {n} cases, more than {MOST_CASES}: sweep fewer values")
    for key, times in Counter(axis.key for axis in axes).items():
        if times > 1:
            raise ConfigError(f"--sweep {key} is given {times} times: give all its values in one")
    for values in product(*(axis.values for axis in axes)):
        found, names = setting, []
        for axis, value in zip(axes, values, strict=True):
            found = varied(found, axis.key, value)
            names.append(f"{axis.key}={value:g}")
        yield ",".join(names), found


def varied(setting: Setting, key: str, value: float) -> Setting:
    """The setting with one thing changed."""
    if key == "jobs":
        return replace(setting, jobs=_jobs(setting, int(value)))
    if key == "devices":
        groups = tuple(replace(g, n_devices=int(value)) for g in setting.cluster.groups)
        return replace(setting, cluster=Cluster(groups=groups))
    where, _, name = key.partition(".")
    if where == "constants":
        return replace(setting, constants={**setting.constants, name: value})
    number = int(value) if value == int(value) else value
    return replace(setting, options={**setting.options, name: number})


def _jobs(setting: Setting, n: int) -> tuple[JobSpec, ...]:
    check_jobs(n)
    jobs = list(setting.jobs[:n])
    taken = {job.name for job in setting.jobs}
    while len(jobs) < n:
        again, of = divmod(len(jobs), len(setting.jobs))
        job = setting.jobs[of]
        name = _free(f"{job.name}-{again + 1}", taken)
        jobs.append(replace(job, name=name, seed=job.seed + again))
    return tuple(jobs)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "-again"
    taken.add(name)
    return name


def _number(key: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise ConfigError(f"--sweep {key}: {word.strip()!r} is no number")
    return value
