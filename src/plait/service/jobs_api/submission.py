"""Submission: from what a client sends to jobs that may run here.

The job file goes through ``jobs.load`` like any other, so its mistakes are told with line and
column. Then what only a service must ask: a job names a base model that is served, environments and
rewards that plait has, and data files that came with it. Nothing in a submission can name another
file of this machine, another server, or code: ``module:name`` is refused unless the operator allows
code, and then only for environments and rewards, which run in sandboxes of their own, and from
modules that came along.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError
from plait.envs.registry import KNOWN as ENVIRONMENTS
from plait.envs.registry import PATH_KEYS, TARGET
from plait.jobs.load import load_jobs
from plait.jobs.spec import JobSpec
from plait.rewards.names import JUDGE
from plait.rewards.names import KNOWN as REWARDS
from plait.service.access import Tenant
from plait.store.files import disk_errors, write_whole

JOB_FILE = "job.yaml"
MAX_JOBS = 200
"""Of one submission: each is a row, a directory and a task."""
DATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,90}\.jsonl")
CODE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,90}\.py")
"""Both are plain names: nothing leads out of the submission's directory."""
MAX_FILES = 32
MAX_TEXT = 2**18
"""Characters of a job file, which is read at some 100,000 a second; data come in files of their
own."""
OPERATORS = "have the operator start the server with --allow-code"
MAX_WEIGHT = 1.0
"""A job shares its tenant's weight; it cannot raise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What jobs may name on this server."""

    models: Sequence[str]
    allow_code: bool = False
    can_contain: bool = True
    """There is a sandbox for code."""

    def forbids(self, what: str) -> str | None:
        """Why code may not run here, if it may not; ``what`` it is begins the sentence."""
        if not self.allow_code:
            return (
                f"{what} is code, which does not run here: {OPERATORS}, or use what is registered"
            )
        if not self.can_contain:
            return (
                f"{what} is code, and bubblewrap, its sandbox, is not installed here: have the "
                "operator install it, or use what is registered"
            )
        return None


def job_text(file: str | Mapping[str, Any]) -> str:
    """The job file as text: JSON is YAML."""
    return file if isinstance(file, str) else json.dumps(file, ensure_ascii=False, indent=1)


def read_jobs(
    directory: Path, text: str, files: Mapping[str, str], rules: Rules, tenant: Tenant
) -> tuple[JobSpec, ...]:
    """The jobs of a submission, whose files are put into ``directory``; ConfigError on the first
    mistake."""
    if len(text) > MAX_TEXT:
        raise ConfigError(
            f"the job file has {len(text)} characters, at most {MAX_TEXT} are read: send its data "
            "as files, or its jobs in several"
        )
    _write_files(directory, text, files, rules)
    path = directory / JOB_FILE
    try:
        specs = load_jobs([path])
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(path), JOB_FILE)) from None
    if len(specs) > MAX_JOBS:
        raise ConfigError(f"{len(specs)} jobs in one file: submit at most {MAX_JOBS} at once")
    for spec in specs:
        if (why := _objection(spec, directory, files, rules, tenant)) is not None:
            raise ConfigError(f"job {spec.name}: {why}")
    return specs


def _write_files(directory: Path, text: str, files: Mapping[str, str], rules: Rules) -> None:
    if len(files) > MAX_FILES:
        raise ConfigError(f"more than {MAX_FILES} files: put them together")
    for name in files:
        if DATA_NAME.fullmatch(name) is None and CODE_NAME.fullmatch(name) is None:
            raise ConfigError(
                f"file {name[:60]!r}: send data as NAME.jsonl, NAME of letters, digits, _ and -"
            )
        if name.endswith(".py") and not rules.allow_code:
            raise ConfigError(f"file {name} is code, which does not run here: leave it out")
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    for name, content in {JOB_FILE: text, **files}.items():
        write_whole(directory / name, [content])


def _objection(
    spec: JobSpec, directory: Path, files: Mapping[str, str], rules: Rules, tenant: Tenant
) -> str | None:
    """Why the job may not run here, if it may not."""
    if spec.model not in rules.models:
        served = ", ".join(rules.models) or "none"
        return f"model {_shown(spec.model, directory)} is not served here: served are {served}"
    if spec.base_dir != str(directory.resolve()):
        return "`base_dir` is the server's to give: leave it out"
    if spec.trackers:
        return "`trackers` would write to the operator's accounts: leave them out"
    if spec.controller is not None:
        return "`controller` is code of yours, which does not run here: leave it out"
    if spec.weight > MAX_WEIGHT:
        return f"`weight` above {MAX_WEIGHT:g} is the operator's to give: use at most that"
    if spec.priority > tenant.priority:
        return f"`priority` above {tenant.priority} is the operator's to give: use at most that"
    return _environment(spec, files, rules) or _rewards(spec, files, rules)


def _environment(spec: JobSpec, files: Mapping[str, str], rules: Rules) -> str | None:
    name, known = spec.environment.name, [entry.name for entry in ENVIRONMENTS]
    if name not in known:
        if TARGET.fullmatch(name) is None:
            return f"environment {name[:80]} does not run here: registered are {', '.join(known)}"
        return _code(f"environment {name[:80]}", name, files, rules, known)
    for key in PATH_KEYS:
        value = spec.environment.config.get(key)
        if isinstance(value, str) and value not in files:
            return f"`environment.{key}: {value[:80]}` is no file of this submission: send it along"
    return None


def _rewards(spec: JobSpec, files: Mapping[str, str], rules: Rules) -> str | None:
    known = [entry.name for entry in REWARDS]
    for reward in spec.rewards:
        if reward.name in known:
            continue
        if reward.name == JUDGE:
            return f"reward {JUDGE} would call servers from here: registered are {', '.join(known)}"
        target = reward.function or reward.name or ""
        if (why := _code(f"reward {target[:80]}", target, files, rules, known)) is not None:
            return why
    return None


def _code(
    what: str, target: str, files: Mapping[str, str], rules: Rules, known: Sequence[str]
) -> str | None:
    """Why ``module:name`` may not run here, if it may not."""
    if (why := rules.forbids(what)) is not None:
        return f"{why} ({', '.join(known)})"
    module = target.partition(":")[0]
    return None if f"{module}.py" in files else f"{what}: send {module[:80]}.py along"


def brings_code(spec: JobSpec) -> str | None:
    """What of a job is code of its owner's, if anything is."""
    if spec.environment.name not in [entry.name for entry in ENVIRONMENTS]:
        return f"environment {spec.environment.name[:80]}"
    known = [entry.name for entry in REWARDS]
    targets = [r.function or r.name or "" for r in spec.rewards if r.name not in known]
    return f"reward {targets[0][:80]}" if targets else None


def _shown(model: str, directory: Path) -> str:
    return model.replace(f"{directory}/", "")[:80]
