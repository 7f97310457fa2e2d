"""Job files: from YAML to ``JobSpec``s, and back.

A file holds one job (its keys at the top) or many: ``model`` and ``defaults`` for all of them,
``jobs``, and a ``matrix`` at the top or in a job. ``defaults`` are merged section by section; a
section that names another thing (another environment) replaces the default one whole.

Every mistake is one ConfigError of one line: file, line, column, what is wrong, and the nearest key
where one is unknown. Paths in a file are relative to it.
"""

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from plait.core.errors import ConfigError
from plait.jobs.explain import explain, known_keys
from plait.jobs.matrix import MAX_JOBS, MatrixError, expand
from plait.jobs.spec import JobSpec
from plait.jobs.yamlfile import Where, YamlFile, read_yaml
from plait.models.registry import linear_layers

FILE_KEYS = ("model", "defaults", "jobs", "matrix")
"""What may stand at the top of a file that has ``jobs``."""

FOLDED = "\x85\u2028\u2029\ufeff"
"""Characters that PyYAML writes as they are and reads back as a line break, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """One job before it is checked, and where its keys may stand in the file."""

    data: dict[str, Any]
    label: str
    places: tuple[Where, ...]


def load_jobs(paths: Sequence[str | Path]) -> tuple[JobSpec, ...]:
    """All jobs of all files, in order; ConfigError on the first mistake."""
    jobs: list[JobSpec] = []
    seen: dict[str, str] = {}
    for path in paths:
        file = read_yaml(path)
        for draft in _drafts(file):
            job = _check(file, draft)
            where = file.at(*((*place, "name") for place in draft.places))
            if job.name in seen:
                raise ConfigError(
                    f"{where}: a second job is called `{job.name}` (the first: {seen[job.name]}): "
                    "give each job its own `name`"
                )
            seen[job.name] = where
            jobs.append(job)
            if len(jobs) > MAX_JOBS:
                raise ConfigError(f"{where}: more than {MAX_JOBS} jobs: start them in parts")
    return tuple(jobs)


def dump_resolved(job: JobSpec) -> str:
    """YAML of one job with every default written out; loading it gives an equal ``JobSpec``."""
    data = job.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    if any(c in text for c in FOLDED):
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=False, width=100)
    return text


def _drafts(file: YamlFile) -> Iterator[_Draft]:
    top = file.data
    if not isinstance(top, dict):
        raise ConfigError(f"{file.at(())}: a job file maps keys to values, this is a list or word")
    if "jobs" not in top:
        if "defaults" in top:
            raise ConfigError(f"{file.at(('defaults',))}: `defaults` needs `jobs: [...]`")
        yield from _expanded(file, top, "", (), None, file.path.stem)
        return
    _refuse_unknown_at_top(file, top)
    jobs = top["jobs"]
    if not isinstance(jobs, list) or not jobs:
        raise ConfigError(f"{file.at(('jobs',))}: `jobs` must be a list of jobs")
    defaults = top.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise ConfigError(f"{file.at(('defaults',))}: `defaults` must map keys to values")
    for key in ("name", "matrix"):
        if key in defaults:
            raise ConfigError(f"{file.at(('defaults', key))}: `{key}` cannot be a default")
    if "model" in top:
        defaults = {"model": top["model"]} | defaults
    for i, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise ConfigError(f"{file.at(('jobs', i))}: jobs[{i}] must map keys to values")
        merged = _merge(defaults, job)
        yield from _expanded(
            file, merged, f"jobs[{i}]", ("jobs", i), top.get("matrix"), _environment_name(merged)
        )


def _expanded(
    file: YamlFile,
    job: dict[str, Any],
    label: str,
    place: Where,
    file_matrix: object,
    default_name: str,
) -> Iterator[_Draft]:
    """The job, or what its own matrix and the file's make of it."""
    places: tuple[Where, ...] = (place, ("defaults",)) if place else (place,)
    drafts = [{"name": default_name} | job]
    own_matrix = drafts[0].pop("matrix", None)
    for where, matrix in (((*place, "matrix"), own_matrix), (("matrix",), file_matrix)):
        if matrix is None:
            continue
        try:
            drafts = [one for draft in drafts for one in expand(draft, matrix)]
        except MatrixError as error:
            at = file.at(where if error.key is None else (*where, error.key))
            raise ConfigError(f"{at}: {error}") from None
    for data in drafts:
        yield _Draft(data=data, label=label, places=places)


def _check(file: YamlFile, draft: _Draft) -> JobSpec:
    data = _placed(draft.data, file.path.parent.resolve())
    try:
        return JobSpec.model_validate(data, context=linear_layers(data.get("model")))
    except ValidationError as error:
        keys, message = explain(error, JobSpec, draft.label)
        raise ConfigError(f"{file.at(*_places(file, draft, keys))}: {message}") from None


def _places(file: YamlFile, draft: _Draft, keys: Where) -> Iterator[Where]:
    """Where the value at ``keys`` may have come from: a matrix, the job, the defaults."""
    dotted = ".".join(str(key) for key in keys)
    exact = [
        (*draft.places[0], "matrix", dotted),
        ("matrix", dotted),
        *(place + keys for place in draft.places),
    ]
    yield from (where for where in exact if where in file.marks)
    yield draft.places[0] + keys


def _refuse_unknown_at_top(file: YamlFile, top: Mapping[str, Any]) -> None:
    for key in top:
        if key in FILE_KEYS:
            continue
        at = file.at((key,))
        if key in known_keys(JobSpec, ()):
            raise ConfigError(
                f"{at}: `{key}` belongs to a job: put it under `defaults` or in a job"
            )
        near = difflib.get_close_matches(key, FILE_KEYS, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(FILE_KEYS)}"
        raise ConfigError(f"{at}: unknown key `{key}` beside `jobs`: {hint}")


def _merge(defaults: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    out = copy.deepcopy(dict(defaults))
    for key, value in job.items():
        base = out.get(key)
        if isinstance(base, dict) and isinstance(value, dict) and not _names_another(base, value):
            out[key] = _merge(base, value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def _names_another(base: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    return "name" in value and value["name"] != base.get("name", value["name"])


def _environment_name(job: Mapping[str, Any]) -> str:
    environment = job.get("environment")
    return str(environment.get("name", "job")) if isinstance(environment, dict) else "job"


def _placed(job: dict[str, Any], base_dir: Path) -> dict[str, Any]:
    """The job with the directory that its relative paths and modules are relative to, so that the
    resolved configuration means the same from anywhere."""
    job = {"base_dir": str(base_dir)} | job
    model = job.get("model")
    if isinstance(model, str) and "\0" not in model:
        place = base_dir / model
        if model.startswith(".") or _is_dir(place):
            job["model"] = str(place.resolve())
    return job


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, a directory that may not be looked into
        return False
