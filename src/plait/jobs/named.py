"""Named: what a job file names by word or by ``module:name``: its environment, its controller."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any

from plait.core.errors import ConfigError
from plait.envs.contain import loading
from plait.envs.protocol import TaskSource
from plait.envs.registry import make_source
from plait.jobs.context import Controller, JobContext
from plait.jobs.controller import RLController
from plait.jobs.spec import JobSpec
from plait.models.tokenizer import Tokenizer


def make_source_of(spec: JobSpec, tokenizer: Tokenizer) -> TaskSource:
    """The job's environment; ConfigError if its section is wrong."""
    with importable(spec.base_dir):
        return make_source(
            spec.environment.name, spec.environment.config, tokenizer, spec.seed, spec.base_dir
        )


def load_controller(spec: JobSpec) -> Callable[[JobContext], Controller]:
    """The job's own controller class, or the RL loop."""
    if spec.controller is None:
        return RLController
    module, _, name = spec.controller.partition(":")
    what = f"controller {spec.controller} of job {spec.name}"
    with importable(spec.base_dir), loading(what):
        found: Any = getattr(importlib.import_module(module), name)
        runs = iscoroutinefunction(getattr(found, "run", None))
    if not isinstance(found, type) or not runs:
        raise ConfigError(
            f"{what} is no controller: name a class that takes a JobContext and has "
            "`async def run(self)`"
        )
    return found


@contextmanager
def importable(directory: str) -> Iterator[None]:
    """Let ``module:name`` find files beside the job file."""
    if not directory or directory in sys.path:
        yield
        return
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
