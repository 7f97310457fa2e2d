"""Resume: what is left to do in a launch directory, and how it was being done."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError
from plait.jobs.load import load_jobs
from plait.jobs.spec import JobSpec
from plait.obs.info import read_info
from plait.obs.layout import LaunchLayout
from plait.runtime.settings import Settings
from plait.store.rows import RunStatus
from plait.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The jobs that have not ended well or been cancelled, in order of joining."""

    specs: tuple[JobSpec, ...]
    policy: str
    options: dict[str, Any]
    """The policy's."""
    settings: Settings


def left_of(directory: Path) -> Left:
    """Read a launch directory; ConfigError if it is none, or if nothing is left to do."""
    layout = LaunchLayout(directory)
    info = read_info(layout)
    if not info:
        raise ConfigError(f"{directory} is no launch directory: it has no launch.json")
    names = dict.fromkeys([*info.get("jobs", ()), *layout.job_names()])
    configs = [layout.job(name).config for name in names]
    specs = load_jobs([config for config in configs if config.is_file()])
    with Store.at(layout.store) as store:
        ended = {
            row.name
            for row in store.runs.list()
            if row.status in (RunStatus.DONE, RunStatus.CANCELLED)
        }
    left = tuple(spec for spec in specs if spec.name not in ended)
    if not left:
        raise ConfigError(f"every job of {directory} has ended: there is nothing to resume")
    known = {field.name: type(field.default) for field in fields(Settings)}
    stored = {key: value for key, value in info.get("settings", {}).items() if key in known}
    for key, value in stored.items():
        if type(value) is not known[key]:
            raise ConfigError(
                f"{layout.info}: the setting {key} is no {known[key].__name__}: put it back as it "
                "was, or start anew in another directory"
            )
    return Left(
        specs=left,
        policy=info["policy"],
        options=dict(info.get("policy_options", {})),
        settings=Settings(**stored),
    )


def overridden(settings: Settings, asked: Settings) -> Settings:
    """The launch's settings, with what was asked for now (is not the default) in their place."""
    usual = Settings()
    now = {f.name: getattr(asked, f.name) for f in fields(Settings)}
    return replace(settings, **{k: v for k, v in now.items() if v != getattr(usual, k)})
