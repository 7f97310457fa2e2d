"""Launches: the base models of a house, each with its workers, started on first use and kept.

One task owns each launch from start to end. A launch whose workers are gone for good (they die on
every start, the disk is full) is closed and opened anew when it is next asked for, not sooner than
``AGAIN_S`` later: what its runs have committed is in the store, and whoever drove them takes them
up again. Directories are named after models, so that a house may change its list.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import CLOSED, NotFound, PlaitError, RunEnded
from plait.jobs.launch import Launch
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.runtime.session import Shared
from plait.runtime.settings import Settings
from plait.service.ports import ModelOffer

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Between a launch that failed and the next: what it lacks may be coming back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A base model of the house."""

    offer: ModelOffer
    place: Path


class Base:
    """One base model and the launch that serves it at the moment."""

    def __init__(self, offered: Offered, make: Callable[[Offered], Launch]) -> None:
        self.offered, self._make = offered, make
        self._keeper: asyncio.Task[None] | None = None
        self._up: asyncio.Future[Launch] | None = None
        self._leave = asyncio.Event()

    @property
    def running(self) -> Launch | None:
        """The launch, if it is up and serves."""
        up = self._up
        if up is None or not up.done() or up.cancelled() or up.exception() is not None:
            return None
        launch = up.result()
        return launch if launch.session.head.roster.closed is None else None

    async def launch(self) -> Launch:
        """The running launch; started if there is none. Raises why it cannot be started."""
        if (running := self.running) is not None:
            return running
        if self._up is None or self._up.done():
            await self._begin()
        assert self._up is not None
        return await asyncio.shield(self._up)

    async def _begin(self) -> None:
        before, loop = self._keeper, asyncio.get_running_loop()
        up = self._up = loop.create_future()
        up.add_done_callback(lambda f: f.cancelled() or f.exception())
        self._leave.set()
        self._leave = asyncio.Event()
        self._keeper = asyncio.create_task(
            self._keep(up, self._leave, before), name=f"launch-{self.offered.place.name}"
        )

    async def _keep(
        self,
        up: asyncio.Future[Launch],
        leave: asyncio.Event,
        before: asyncio.Task[None] | None,
    ) -> None:
        try:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
                await asyncio.sleep(AGAIN_S)
            async with self._make(self.offered) as launch:
                up.set_result(launch)
                await leave.wait()
        except Exception as error:
            if up.done():
                log.exception("leaving %s", self.offered.offer.name)
            else:
                log.error("%s cannot be started: %s", self.offered.offer.name, error)
                up.set_exception(error)
        finally:
            if not up.done():
                up.set_exception(RunEnded(CLOSED))

    async def close(self) -> None:
        """Leave the launch in order."""
        if self._keeper is None:
            return
        self._leave.set()
        if self._up is not None and not self._up.done():
            self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)


class Launches:
    """All base models of a house."""

    def __init__(
        self,
        directory: Path,
        models: Sequence[str],
        *,
        settings: Settings,
        policy: str,
        shared: Shared,
    ) -> None:
        """ConfigError or ModelError if a model is none. Nothing is started."""

        def make(offered: Offered) -> Launch:
            return Launch(
                offered.place,
                model=offered.offer.name,
                policy=policy,
                settings=settings,
                shared=shared,
            )

        self._bases = {
            name: Base(_offered(directory, name), make) for name in dict.fromkeys(models)
        }

    def offers(self) -> list[ModelOffer]:
        """Base models that can be named."""
        return [base.offered.offer for base in self._bases.values()]

    def known(self, base_model: str) -> str:
        """The name under which a base model is served; NotFound."""
        if base_model in self._bases:
            return base_model
        for name, base in self._bases.items():
            if base_model.rstrip("/") == base.offered.offer.model_dir:
                return name
        served = ", ".join(self._bases)
        raise NotFound(f"base model {base_model[:120]!r} is not served here: served are {served}")

    def place(self, base_model: str) -> Path:
        """The directory of a base model's launch."""
        return self._bases[self.known(base_model)].offered.place

    async def launch(self, base_model: str) -> Launch:
        """The running launch of a base model, started on first use."""
        return await self._bases[self.known(base_model)].launch()

    def launched(self, base_model: str) -> Launch | None:
        """The running launch of a base model; None if there is none at the moment."""
        return self._bases[self.known(base_model)].running

    async def warm(self) -> None:
        """Start them all; what cannot be started says so to whoever asks for it."""
        for base in self._bases.values():
            try:
                await base.launch()
            except PlaitError:
                continue

    async def settle(self) -> None:
        """Put into the books what runs have used since their last versions."""
        for base in self._bases.values():
            if (launch := base.running) is not None:
                await launch.session.settle()

    async def close(self) -> None:
        """Leave every launch in order."""
        await asyncio.gather(*(base.close() for base in self._bases.values()))


def _offered(directory: Path, name: str) -> Offered:
    model_dir = resolve(name)
    shape = read_shape(model_dir, name=name)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name).strip("-.")[:60] or "model"
    if plain != name:  # two directories may end in the same name
        plain = f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    offer = ModelOffer(name=name, max_context=shape.max_context, model_dir=str(model_dir))
    return Offered(offer=offer, place=directory / "models" / plain)
