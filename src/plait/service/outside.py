"""Outside: sampling for outside clients: samplers, their requests, and a lane for each base model.

A lane lives as long as the launch whose workers it feeds; one that is opened anew gets a new one.
What samples use is added up here and written to the usage ledger every ``FLUSH_S``: an end by force
loses at most that much of it.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plait.core.errors import CLOSED, PlaitError, RunEnded, StoreError
from plait.core.ids import RunId, TenantId
from plait.jobs.launch import Launch
from plait.runtime.ledger import PROMPT, SAMPLED
from plait.service.access import Access
from plait.service.launches import Launches
from plait.service.ports import Models, Who
from plait.service.residents import Share as RunShare
from plait.service.sample_lane import SampleLane, lane_of
from plait.service.sample_requests import SampleRequests
from plait.service.samplers import Samplers
from plait.service.ticket import Share, Source, Spent
from plait.service.work import Codec
from plait.store.store import Store
from plait.store.usage import NO_RUN, Used
from plait.store.writer import GroupWriter

FLUSH_S = 5.0
PINS = "pins"
"""In a launch's directory: adapters of runs' versions that were sampled by name."""


class Outside:
    """``sampling.Sampling``."""

    def __init__(
        self,
        *,
        directory: Path,
        launches: Launches,
        store: Store,
        writer: GroupWriter,
        models: Models,
        access: Access,
        codec: Codec,
        share: Callable[[TenantId], RunShare],
        boot: str,
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._launches, self._store, self._writer = launches, store, writer
        self._access, self._share, self._wall = access, share, wall
        self._lanes: dict[str, tuple[Launch, SampleLane]] = {}
        self._spent: dict[tuple[TenantId, str, str], Used] = {}
        self._flusher: asyncio.Task[None] | None = None
        self.samplers = Samplers(
            store=store,
            writer=writer,
            directory=directory,
            models=models,
            base_models=lambda: [offer.name for offer in launches.offers()],
            wall=wall,
        )
        self.samples = SampleRequests(
            source=self.samplers.source, lane=self.lane, codec=codec, boot=boot, now=clock
        )

    async def lane(self, base_model: str) -> SampleLane:
        """The lane of a base model, whose launch is started if need be; NotFound."""
        base_model = self._launches.known(base_model)
        launch = await self._launches.launch(base_model)
        known = self._lanes.get(base_model)
        if known is None or known[0] is not launch:
            if known is not None:
                known[1].close(RunEnded(CLOSED))
            lane = lane_of(
                launch.session.head,
                self._launches.place(base_model) / PINS,
                share=self._shares,
                hold=self._access.limits.hold,
                on_spent=self._on_spent,
            )
            self._lanes[base_model] = known = (launch, lane)
        return known[1]

    async def recover(self) -> None:
        """Go on with the samplers that live."""
        await self.samplers.recover()
        self._flusher = asyncio.create_task(self._flush_always(), name="usage")

    async def close(self) -> None:
        """Refuse what is under way: it is asked for again."""
        await self.samples.close()
        for _, lane in self._lanes.values():
            lane.close(RunEnded(CLOSED))
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
            with contextlib.suppress(StoreError):
                await self._flush()

    async def open(
        self, who: Who, session_id: str, seq: int, *, base_model: str | None, path: str | None
    ) -> str:
        """A sampler of a base model or of a ``tinker://`` path; asked again, the same."""
        if base_model is not None and path is None:
            base_model = self._launches.known(base_model)
        return await self.samplers.open_sampler(
            who, session_id, seq, base_model=base_model, path=path
        )

    async def info(self, who: Who, sampler_id: str) -> Mapping[str, Any]:
        """One sampler."""
        return await self.samplers.sampler(who, sampler_id)

    async def join(self, who: Who, sampler_id: str) -> int:
        """A number for a new copy of a sampling client."""
        return await self.samplers.join(who, sampler_id)

    async def snapshot(
        self,
        *,
        tenant_id: TenantId,
        session_id: str,
        seq: int,
        model_id: str,
        version: int,
        directory: Path,
        inflight: bool,
    ) -> str:
        """An ephemeral sampler of a committed version, which is loaded while its client makes up
        its mind what to sample."""
        sampler_id = await self.samplers.pin(
            session_id=session_id,
            sampler_seq=seq,
            model_id=model_id,
            tenant_id=tenant_id,
            version=version,
            version_dir=directory,
            inflight=inflight,
        )
        source = self.samplers.pinned(sampler_id)
        with contextlib.suppress(PlaitError):  # who samples it will hear why there is no lane
            (await self.lane(source.base_model)).prepare(source)
        return sampler_id

    async def advanced(self, model_id: str, version: int, directory: Path) -> None:
        """A model has a new version: samplers that follow it go on with that."""
        await self.samplers.advanced(model_id, version, directory)

    async def end_session(self, session_id: str) -> None:
        """Cancel a session's samples and free what its samplers pin."""
        self.samples.end_samplers(await self.samplers.session_ended(session_id))

    def _shares(self, source: Source) -> Share:
        share = self._share(source.tenant_id)
        own = self._run_weight(source, share.weight)
        return Share(weight=share.weight, priority=share.priority, run_weight=own)

    def _run_weight(self, source: Source, of_tenant: float) -> float:
        """Of a run among its tenant's: what a job's file says while the job runs (there it has its
        tenant's too), else the same for all."""
        launch = self._launches.launched(source.base_model)
        if launch is None or not launch.session.has_run(source.run):
            return 1.0
        return launch.session.run(source.run).facts.spec.weight / of_tenant

    def _on_spent(self, spent: Spent) -> None:
        tenant_id, run = spent.source.tenant_id, spent.source.run
        tokens = spent.prompt_tokens + spent.sampled_tokens
        self._access.limits.spend(tenant_id, tokens=tokens, device_s=spent.device_s)
        for kind, n_tokens, device_s in (
            (PROMPT, spent.prompt_tokens, 0.0),
            (SAMPLED, spent.sampled_tokens, spent.device_s),
        ):
            before = self._spent.get((tenant_id, run, kind), Used(kind=kind, device_s=0, tokens=0))
            self._spent[tenant_id, run, kind] = Used(
                kind=kind, device_s=before.device_s + device_s, tokens=before.tokens + n_tokens
            )

    async def _flush_always(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            with contextlib.suppress(StoreError):  # it stays in memory until the next time
                await self._flush()

    async def _flush(self) -> None:
        by_tenant: dict[TenantId, list[tuple[RunId, Used]]] = defaultdict(list)
        written = dict(self._spent)
        for (tenant_id, run, _), used in written.items():
            by_tenant[tenant_id].append((RunId(run) if run else NO_RUN, used))
        self._spent = {}
        try:
            for tenant_id, lines in by_tenant.items():
                await self._writer.write(
                    self._store.usage.charge, tenant_id, lines, now=self._wall()
                )
        except StoreError:
            # What was written of it may be written again, which a full disk makes unlikely.
            self._spent = {**written, **self._spent}
            raise
