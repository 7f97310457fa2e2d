"""Session: one launch directory brought to life: lock, store, workers, runs.

What ``plait.open`` hands out. A run that is asked for again is taken up at its last committed
version: what followed lay in the memory of processes that are gone, and is asked for again by
whoever drives the run. The store may be shared with other sessions; then it is its owner's to open
and to close.
"""

import asyncio
import contextlib
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from plait.core.errors import ConfigError, StoreError
from plait.core.ids import LOCAL_TENANT, RunId, TenantId
from plait.core.runs import LoraSpec, RunSpec, Stage
from plait.engines.protocol import ModelShape
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.obs.layout import JobLayout, LaunchLayout
from plait.policies.protocol import Sharing
from plait.runtime import arguments
from plait.runtime.client import RunClient
from plait.runtime.head import Head
from plait.runtime.journal import Journal
from plait.runtime.ledger import Ledger
from plait.runtime.retention import Retention
from plait.runtime.settings import Settings
from plait.store.files import VersionDirs
from plait.store.lock import LaunchLock
from plait.store.rows import Json, RunRow, RunStatus
from plait.store.store import Store
from plait.store.writer import GroupWriter

_STATUS = {
    Stage.DONE: RunStatus.DONE,
    Stage.FAILED: RunStatus.FAILED,
    Stage.CANCELLED: RunStatus.CANCELLED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A store that several sessions write to, by one writer."""

    store: Store
    writer: GroupWriter


class Session:
    """Many runs on one base model; use as ``async with``."""

    def __init__(
        self,
        directory: Path,
        *,
        model: str,
        sharing: Sharing,
        settings: Settings,
        journal: Journal,
        locked: bool = False,
        shared: Shared | None = None,
    ) -> None:
        """``locked``: the caller holds the directory's lock already. ``shared``: the store of
        others too, else there is one of its own in the directory."""
        self.directory, self.model, self.sharing = directory.resolve(), model, sharing
        self._settings, self._journal, self._locked = settings, journal, locked
        self._shared = shared
        self._clients: dict[RunId, RunClient] = {}

    async def __aenter__(self) -> Self:
        """Take the directory, open its store, start the workers."""
        async with AsyncExitStack() as stack:
            if not self._locked:
                stack.enter_context(LaunchLock(self.directory))
            self.model_dir = await asyncio.to_thread(resolve, self.model)
            self.shape: ModelShape = read_shape(self.model_dir, name=self.model)
            if self._shared is None:
                self.store = stack.enter_context(Store.at(self.directory / "store.db"))
                self._check_store()
                self._writer = GroupWriter(self.store.database)
                stack.callback(self._writer.close)
            else:
                self.store, self._writer = self._shared.store, self._shared.writer
            self.head = Head(
                model_dir=self.model_dir,
                shape=self.shape,
                sharing=self.sharing,
                settings=self._settings,
                launch_dir=self.directory,
                journal=self._journal,
            )
            await self.head.start()
            stack.push_async_callback(self.head.stop)
            stack.push_async_callback(self._settle_last)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the workers; everything committed stays and can be resumed."""
        await self._stack.aclose()

    async def create_run(
        self,
        name: str,
        *,
        lora: LoraSpec | None = None,
        weight: float = 1.0,
        priority: int = 0,
        max_staleness: int = 0,
        checkpoint_every: int = 10,
        keep_last: int = 2,
        keep_best: int = 0,
        tenant_id: TenantId = LOCAL_TENANT,
        about: Json | None = None,
        samplable: bool = True,
    ) -> RunClient:
        """A new run at version 0, or the run of that name as it was last committed.

        ``about`` is kept with its settings. ``samplable``: what it begins with is published at
        once, as its step-by-step drivers expect.
        """
        self.head.roster.check_open()
        run_id = RunId(arguments.run_name(name))
        if run_id in self._clients:
            raise ConfigError(f"there is a run {name} already: choose another name")
        spec = RunSpec(
            run_id=run_id,
            tenant_id=tenant_id,
            base_model=self.model,
            lora=arguments.lora(LoraSpec() if lora is None else lora, self.shape.linear_layers),
            weight=weight,
            priority=priority,
            max_staleness=max_staleness,
        )
        stored: Json = {"base_model": spec.base_model, "lora": _plain(asdict(spec.lora))}
        if about is not None:
            stored["about"] = about
        row = await self._writer.write(
            self.store.runs.create,
            run_id,
            tenant_id=tenant_id,
            name=name,
            spec=stored,
            now=self.head.wall(),
        )
        versions_dir = self.directory / "jobs" / name / "versions"
        facts = self.head.add(spec)
        retention = Retention(
            self.store,
            run_id,
            versions_dir,
            every=checkpoint_every,
            keep_last=keep_last,
            keep_best=keep_best,
            max_staleness=max_staleness,
            launch_dir=self.directory,
        )
        ledger = Ledger(
            self.head,
            facts,
            store=self.store,
            writer=self._writer,
            retention=retention,
            launch_dir=self.directory,
        )
        client = RunClient(
            self.head, facts, ledger=ledger, versions_dir=versions_dir, samplable=samplable
        )
        self._clients[run_id] = client
        try:
            await self._take_up(client, row, versions_dir)
        except BaseException:
            if self._shared is not None:  # others go on here, and it may be asked for again
                self.let_go(name)
            raise
        return client

    def let_go(self, name: str) -> bool:
        """Free what an idle run holds; it can be asked for again. False while it is not idle."""
        run_id = RunId(name)
        if run_id not in self._clients:
            return True
        if not self.head.let_go(run_id):
            return False
        del self._clients[run_id]
        return True

    async def end_run(self, name: str, stage: Stage, reason: str = "") -> None:
        """Record how a run ended, and what it has used; its state stays on disk."""
        run_id = RunId(name)
        self.head.end(run_id, stage, reason)
        await self._clients[run_id].settle()
        await self._writer.write(
            self.store.runs.set_status,
            run_id,
            _STATUS[stage],
            reason=reason,
            now=self.head.wall(),
        )

    async def settle(self) -> None:
        """Put into the books what all runs have used since their last versions."""
        for run_id, client in list(self._clients.items()):
            if self._clients.get(run_id) is client:  # and has not been taken up anew meanwhile
                await client.settle()

    async def _settle_last(self) -> None:
        """The books are behind by a little if the disk is full: that is no reason not to stop."""
        with contextlib.suppress(StoreError):
            await self.settle()

    def run(self, name: str) -> RunClient:
        """The client of a run made here."""
        try:
            return self._clients[RunId(name)]
        except KeyError:
            known = ", ".join(self._clients) or "none"
            raise ConfigError(f"there is no run {name}: known are {known}") from None

    def has_run(self, name: str) -> bool:
        """True if a run of that name was made here."""
        return RunId(name) in self._clients

    def _check_store(self) -> None:
        """StoreError if it is damaged, or if runs have left versions or rows here that it does not
        know: it would take all that for what a crash has left, and remove it."""
        self.store.database.check()
        known = {row.name for row in self.store.runs.list()}
        layout = LaunchLayout(self.directory)
        if lost := [n for n in layout.job_names() if n not in known and _begun(layout.job(n))]:
            raise StoreError(
                f"{self.directory / 'store.db'} is missing or empty, it does not know run "
                f"{', '.join(lost)}: restore it, or start anew in another directory"
            )

    async def _take_up(self, client: RunClient, row: RunRow, versions_dir: Path) -> None:
        """Bring a run to its last committed version, whatever happened to it before."""
        run_id, dirs = row.run_id, VersionDirs(versions_dir)
        mutations = self.store.mutations
        rows = await self._writer.write(mutations.versions, run_id)
        await asyncio.to_thread(dirs.check_rows, rows[-1].version if rows else -1)
        if row.status.ended:
            await self._writer.write(
                self.store.runs.set_status, run_id, RunStatus.ACTIVE, now=self.head.wall()
            )
        await self._writer.write(mutations.rewind, run_id)
        swept = await asyncio.to_thread(dirs.sweep, [r.version for r in rows])
        if not rows:
            await client.create()
            return
        last = rows[-1]
        if last.version in swept.missing:
            raise StoreError(
                f"{dirs.path(last.version)} is gone: put it back, or start run {run_id} in a new "
                "directory"
            )
        client.facts.step = int(row.progress.get("step", 0))
        path = str(dirs.path(last.version))
        before = [r.version for r in rows[:-1] if r.version not in swept.missing]
        await client.attach(last.version, path, last.seq + 1, before=before)


def _begun(job: JobLayout) -> bool:
    files = (job.metrics, job.samples)
    return any(file.is_file() and file.stat().st_size for file in files) or bool(
        VersionDirs(job.root / "versions").versions()
    )


def _plain(value: Json) -> Json:
    """JSON form of a spec: tuples become lists, so that it compares equal when read back."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in value.items()}
