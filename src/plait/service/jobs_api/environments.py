"""Environments: those of submitted jobs. What is registered runs here; a module that came with its
job runs apart, in a sandbox, and nothing of it before its job has begun."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from plait.envs.apart.place import Place
from plait.envs.apart.source import ApartSource
from plait.envs.protocol import TaskSource
from plait.envs.registry import KNOWN, make_source
from plait.jobs.spec import JobSpec
from plait.models.tokenizer import Tokenizer
from plait.service.ports import ModelOffer


class Environments:
    """Makes each registered environment once before its job is taken: what it refuses is told to
    who submits."""

    def __init__(self, offers: Callable[[], Sequence[ModelOffer]]) -> None:
        self._offers = offers
        self._tokenizers: dict[str, Tokenizer] = {}

    async def check(self, specs: Sequence[JobSpec]) -> None:
        """Raises what an environment refuses."""
        seen: set[str] = set()
        for spec in specs:
            if not is_registered(spec):
                continue
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


def is_registered(spec: JobSpec) -> bool:
    """Its environment is plait's own."""
    return spec.environment.name in [entry.name for entry in KNOWN]


def source_of(spec: JobSpec, tokenizer: Tokenizer, log: Path | None = None) -> TaskSource:
    """The job's environment. Not ``jobs.named``'s way, which would import modules from among the
    submitted files here. ``log``: what such a module prints."""
    environment = spec.environment
    if not is_registered(spec):
        place = Place(sys_path=(spec.base_dir,), model_dir=tokenizer.model_dir, log=log)
        return ApartSource(environment.name, environment.config, seed=spec.seed, place=place)
    return make_source(environment.name, environment.config, tokenizer, spec.seed, spec.base_dir)
