"""What ``plait sim`` takes: a workload file, a job file, a recorded launch, a paper's workload."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from plait.cli.prepare import one_model, open_sources
from plait.core.errors import ConfigError, ModelError
from plait.jobs.load import load_jobs
from plait.jobs.simulated import sim_jobs
from plait.jobs.yamlfile import YamlFile, read_yaml
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.models.tokenizer import Tokenizer
from plait.obs.launch import Launch, read_launch
from plait.profiles.slowdown import Slowdown
from plait.sim.costs.models import model_of
from plait.sim.costs.roofline import costs_of
from plait.sim.fit import fit
from plait.sim.named import scheme
from plait.sim.replay import predict, scheme_of, setting_of
from plait.sim.schemes import Scheme
from plait.sim.setting_file import check_setting, setting_from
from plait.sim.spec import Cluster, DeviceGroup, Setting
from plait.sim.workloads.names import workload
from plait.sim.world import CostsOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """How long the recorded launch took."""

    policy: str
    makespan_s: float

    def line(self, simulated_s: float) -> str:
        """Beside what was simulated first."""
        return (
            f"the launch itself, under {self.policy}: {self.makespan_s:.1f} s, "
            f"simulated ÷ recorded {simulated_s / self.makespan_s:.2f}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is simulated, and at what costs."""

    setting: Setting
    scheme: Scheme
    """Where no policy is named."""
    costs_of: Callable[[Setting], CostsOf]
    slowdown: Slowdown | None = None
    live: Live | None = None


def open_source(what: str, *, device: str | None, alone: Sequence[Path]) -> Source:
    """Read ``what``; ConfigError if it is nothing that can be simulated."""
    path = Path(what)
    if path.is_dir():
        _no_device(device, "a launch ran on one already")
        return _launch(path, alone)
    if alone:
        raise ConfigError("--alone belongs to a recorded launch: give its directory")
    if path.suffix in (".yaml", ".yml") or path.is_file():
        file = read_yaml(path)
        if isinstance(file.data, dict) and "cluster" in file.data:
            _no_device(device, "a workload names its own")
            return _computed(_workload(file))
        return _computed(_job_file(path, device or "cpu"))
    _no_device(device, "a workload names its own")
    setting = workload(what)
    return _computed(setting)


def _no_device(device: str | None, why: str) -> None:
    if device is not None:
        raise ConfigError(f"--device belongs to a job file, {why}: leave it out")


def _computed(setting: Setting) -> Source:
    full = all(job.weights == "full" for job in setting.jobs)
    return Source(
        setting=setting,
        scheme=scheme("isolated" if full else "plait"),
        costs_of=lambda setting: partial(costs_of, constants=setting.constants),
    )


def _workload(file: YamlFile) -> Setting:
    try:
        return setting_from(file.data)
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}") from None


def _job_file(path: Path, device: str) -> Setting:
    specs = load_jobs([path])
    model = one_model(specs)
    directory = resolve(model)
    tokenizer, shape = Tokenizer(directory), read_shape(directory, name=model)

    async def read() -> Setting:
        async with open_sources(specs, tokenizer) as sources:
            jobs = await sim_jobs(
                specs, sources, model=_cost_model(model), max_context=shape.max_context
            )
            group = DeviceGroup(name="machine", device=device, n_devices=1)
            return Setting(cluster=Cluster(groups=(group,)), jobs=jobs)

    setting = asyncio.run(read())
    check_setting(setting)
    return setting


def _launch(path: Path, alone: Sequence[Path]) -> Source:
    launch = read_launch(path)
    if not (named := launch.info.get("model")):
        raise ConfigError(f"{path}/launch.json names no model: put it back as it was")
    model = _cost_model(str(named))
    if alone:
        found = predict(launch, [read_launch(one) for one in alone], model=model)
        setting, rates = found.setting, found.rates
    else:
        rates = fit([launch], model=model)
        setting = setting_of(launch, model=model)
    return Source(
        setting=setting,
        scheme=scheme_of(launch),
        costs_of=lambda _: rates.costs(),
        slowdown=rates.slowdown(),
        live=_live(launch),
    )


def _live(launch: Launch) -> Live:
    added = [float(e["t"]) for e in launch.events if e["kind"] == "added"]
    rows = [row for job in launch.jobs for row in (*job.steps, *job.evaluations)]
    ended_s = max((float(row["t"]) for row in rows), default=0.0)
    return Live(policy=str(launch.info["policy"]), makespan_s=ended_s - min(added, default=0.0))


def _cost_model(model: str) -> str:
    """How the cost model calls a launch's model: by the same name, or by its configuration."""
    try:
        model_of(model)
    except ConfigError:
        try:
            return str(resolve(model) / "config.json")
        except ModelError as error:
            raise ConfigError(f"{error}") from error
    return model
