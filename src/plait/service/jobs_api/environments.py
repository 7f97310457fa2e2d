"""Environments: those of submitted jobs, made from what is registered alone."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from plait.envs.protocol import TaskSource
from plait.envs.registry import make_source
from plait.jobs.spec import JobSpec
from plait.models.tokenizer import Tokenizer
from plait.service.ports import ModelOffer


class Environments:
    """Makes each environment once before its job is taken: what it refuses is told to who
    submits."""

    def __init__(self, offers: Callable[[], Sequence[ModelOffer]]) -> None:
        self._offers = offers
        self._tokenizers: dict[str, Tokenizer] = {}

    async def check(self, specs: Sequence[JobSpec]) -> None:
        """Raises what an environment refuses."""
        seen: set[str] = set()
        for spec in specs:
            key = f"{spec.model}\0{spec.environment.model_dump_json()}"
            if key in seen:
                continue
            seen.add(key)
            source = await asyncio.to_thread(source_of, spec, await self._tokenizer(spec.model))
            await source.aclose()

    async def _tokenizer(self, model: str) -> Tokenizer:
        if model not in self._tokenizers:
            (place,) = [o.model_dir for o in self._offers() if o.name == model]
            self._tokenizers[model] = await asyncio.to_thread(Tokenizer, Path(place))
        return self._tokenizers[model]


def source_of(spec: JobSpec, tokenizer: Tokenizer) -> TaskSource:
    """A registered environment. Not ``jobs.named``'s way, which would let modules be found among
    the submitted files."""
    environment = spec.environment
    return make_source(environment.name, environment.config, tokenizer, spec.seed, spec.base_dir)
