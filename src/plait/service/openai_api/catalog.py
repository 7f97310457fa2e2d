"""Catalog: the names of what can be sampled, and what they stand for.

A base model by its own name; ``RUN@latest``, ``RUN@12`` (a version), ``RUN@step-10`` (a
checkpoint), where RUN is the name of a job or the id of a run or model; ``tinker://…`` paths.
``latest`` is looked up for every request. What belongs to another tenant is not there.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import NotFound
from plait.core.ids import RunId
from plait.models.tokenizer import Tokenizer
from plait.service import names
from plait.service.ports import House, ModelOffer, Who
from plait.service.ticket import Source
from plait.store.jobs import JobRow
from plait.store.rows import RunRow

SCHEME = "tinker://"
LISTED_RUNS = 500
"""Runs whose names ``/v1/models`` lists, the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a name stands for."""

    source: Source
    offer: ModelOffer
    fingerprint: str
    """Which weights have answered, for ever."""


class Catalog:
    """The names of a house."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._tokenizers: dict[str, Tokenizer] = {}

    async def find(self, who: Who, name: str) -> Served:
        """What a name stands for now; NotFound says which names there are."""
        offers = {offer.name: offer for offer in self._house.offers()}
        if (offer := offers.get(name)) is not None:
            source = Source(tenant_id=who.tenant_id, base_model=name)
            return Served(source=source, offer=offer, fingerprint=name)
        if name.startswith(SCHEME):
            return await self._checkpoint(who, name, offers)
        ref, _, which = name.rpartition("@")
        row = None if not ref else await asyncio.to_thread(self._run, who, ref)
        if row is None or (offer := offers.get(row.spec["base_model"])) is None:
            raise NotFound(
                f"there is no model {name[:200]!r}: give a base model, RUN@latest or RUN@STEP "
                "(GET /v1/models lists them)"
            )
        if "/" in which:  # a client's checkpoint
            path = f"{SCHEME}{names.model_of(row.run_id)}/{which}"
            return await self._checkpoint(who, path, offers)
        version, directory = await asyncio.to_thread(self._version, row, which)
        return Served(
            source=Source(
                tenant_id=who.tenant_id,
                base_model=offer.name,
                run=row.run_id,
                policy=row.run_id,
                version=version,
                directory=directory,
            ),
            offer=offer,
            fingerprint=f"{names.model_of(row.run_id)}@{version}",
        )

    async def listed(self, who: Who) -> list[tuple[str, float]]:
        """Names for this caller, and since when each has been there."""
        found = [(offer.name, 0.0) for offer in self._house.offers()]
        return found + await asyncio.to_thread(self._runs, who)

    async def tokenizer(self, offer: ModelOffer) -> Tokenizer:
        """The tokenizer of a base model."""
        known = self._tokenizers.get(offer.name)
        if known is None:
            known = await asyncio.to_thread(Tokenizer, offer.model_dir)
            self._tokenizers[offer.name] = known
        return known

    async def _checkpoint(self, who: Who, path: str, offers: dict[str, ModelOffer]) -> Served:
        info = await self._house.models.checkpoint(who, path)
        if (offer := offers.get(info.base_model)) is None:
            raise NotFound(f"base model {info.base_model} of {path} is not served here")
        made = f"{path}#{info.created_at}"  # one of the same name may replace it
        return Served(
            source=Source(
                tenant_id=who.tenant_id,
                base_model=offer.name,
                run=names.run_of(info.model_id),
                policy=made,
                version=0,
                directory=await self._house.models.files(who, path),
            ),
            offer=offer,
            fingerprint=made,
        )

    def _run(self, who: Who, ref: str) -> RunRow | None:
        store = self._house.store
        row = store.runs.find(names.run_of(ref))
        if row is None or row.tenant_id != who.tenant_id:
            jobs = store.jobs.named(who.tenant_id, ref)
            row = store.runs.find(_run_id(jobs[-1])) if jobs else None
        return row if row is not None and row.tenant_id == who.tenant_id else None

    def _version(self, row: RunRow, which: str) -> tuple[int, Path]:
        """The number and the directory of a version of a run."""
        store, place = self._house.store, self._house.place(row.spec["base_model"])
        if which == "latest" and (latest := store.mutations.latest_version(row.run_id)) is not None:
            return latest.version, place / latest.path
        versions = {str(v.version): v for v in store.mutations.versions(row.run_id)}
        checkpoints = {c.name: c for c in store.checkpoints.list(row.run_id)}
        if (version := versions.get(which)) is not None:
            return version.version, place / version.path
        if (checkpoint := checkpoints.get(which)) is not None:
            return checkpoint.version, place / checkpoint.path
        there = ["latest"] if versions else []
        there += [*versions, *checkpoints]
        raise NotFound(
            f"run {row.name} has no {which[:100]!r} that is kept: there are {', '.join(there)}"
            if there
            else f"run {row.name} has committed nothing yet: ask again when it has"
        )

    def _runs(self, who: Who) -> list[tuple[str, float]]:
        store = self._house.store
        # A name that several jobs have is the newest one's, as where it is looked up.
        named = {j.name: _run_id(j) for j in store.jobs.list(tenant_id=who.tenant_id)}
        job_names = {run_id: name for name, run_id in named.items()}
        found = []
        for row in store.runs.list(tenant_id=who.tenant_id)[-LISTED_RUNS:]:
            versions = store.mutations.versions(row.run_id)
            if not versions:
                continue
            ref = job_names.get(row.run_id) or names.model_of(row.run_id)
            found.append((f"{ref}@latest", versions[-1].created_at))
            found += [(f"{ref}@{v.version}", v.created_at) for v in versions]
            found += [(f"{ref}@{c.name}", c.created_at) for c in store.checkpoints.list(row.run_id)]
        return found


def _run_id(job: JobRow) -> RunId:
    return job.run_id or RunId(job.job_id)
