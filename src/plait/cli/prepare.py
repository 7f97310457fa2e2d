"""Prepare: what every verb that takes job files does with them before anything runs."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from plait.core.errors import ConfigError
from plait.core.text import told
from plait.envs.closing import close_source
from plait.envs.protocol import TaskSource
from plait.jobs.named import make_source_of
from plait.jobs.spec import JobSpec
from plait.models.tokenizer import Tokenizer


def one_model(specs: Sequence[JobSpec]) -> str:
    """The base model of all the jobs; ConfigError if they name several."""
    models = sorted({spec.model for spec in specs})
    if len(models) != 1:
        names = ", ".join(models)
        raise ConfigError(f"the jobs name several models ({names}): run each model by itself")
    return models[0]


@asynccontextmanager
async def open_sources(
    specs: Sequence[JobSpec], tokenizer: Tokenizer
) -> AsyncIterator[list[TaskSource]]:
    """The jobs' environments, closed afterwards; one that cannot be closed is only reported."""
    sources: list[TaskSource] = []
    try:
        for spec in specs:
            sources.append(make_source_of(spec, tokenizer))
        yield sources
    finally:
        ended = await asyncio.gather(*map(close_source, sources))
        for spec, error in zip(specs, ended, strict=False):
            if error is not None:
                said = f"closing the environment of job {spec.name}: {told(error)}"
                print(said, file=sys.stderr)
