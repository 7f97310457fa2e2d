"""Ledger: one run's mutations in the store, in the order that makes them durable and single.

Accepted before they are queued, ended once; a version's commit ends the mutation that made it,
keeps the controller's progress and charges the usage in one transaction.
"""

from plait.core.errors import PlaitError
from plait.core.ids import RunId
from plait.core.operations import Mutation
from plait.core.runs import Stage
from plait.runtime.facts import RunFacts
from plait.runtime.head import Head
from plait.runtime.retention import Retention
from plait.store.rows import Json
from plait.store.store import Store, Writer
from plait.store.usage import Used


class Ledger:
    """The store as one run's client sees it."""

    def __init__(
        self, head: Head, facts: RunFacts, *, store: Store, writer: Writer, retention: Retention
    ) -> None:
        self._head, self._facts = head, facts
        self._store, self._writer, self._retention = store, writer, retention
        self._charged = (0.0, 0)

    @property
    def _run_id(self) -> RunId:
        return self._facts.spec.run_id

    async def accept(self, op: Mutation) -> None:
        """Make ``op`` durable; RunEnded if the run takes nothing more."""
        self._facts.check_live()
        await self._writer.call(
            self._store.mutations.accept,
            op.run_id,
            op.seq,
            type(op).__name__,
            now=self._head.wall(),
        )

    async def finish(self, op: Mutation, *, error: PlaitError | None = None) -> None:
        """End ``op``; what was under way when its run was cancelled is left as it is."""
        if error is not None and self._facts.stage is Stage.CANCELLED:
            return
        await self._writer.call(
            self._store.mutations.finish,
            op.run_id,
            op.seq,
            error=None if error is None else f"{error.code}: {error}",
            now=self._head.wall(),
        )

    async def commit(self, op: Mutation, version: int, path: str, progress: Json | None) -> None:
        """Commit the version that ``op`` made; it lies under ``path`` already."""
        facts = self._facts
        await self._writer.call(
            self._store.mutations.commit_version,
            self._run_id,
            version,
            op.seq,
            path,
            result={"version": version},
            progress=progress,
            used=self._usage(),
            now=self._head.wall(),
        )
        facts.version, facts.path = version, path
        facts.uncommitted.clear()
        facts.step = int((progress or {}).get("step", facts.step))
        await self._writer.call(self._retention.apply, version, now=self._head.wall())

    async def progress(self) -> Json:
        """What the run's controller committed last."""
        row = await self._writer.call(self._store.runs.get, self._run_id)
        return row.progress

    async def save_progress(self, progress: Json) -> None:
        """Keep the controller's progress where there is no version to commit it with."""
        await self._writer.call(
            self._store.runs.save_progress, self._run_id, progress, now=self._head.wall()
        )
        self._facts.step = int(progress.get("step", self._facts.step))

    def _usage(self) -> tuple[Used, ...]:
        """What the run has used since the last commit."""
        device_s, tokens = self._facts.served_s, self._facts.tokens
        before_s, before_tokens = self._charged
        self._charged = (device_s, tokens)
        return (Used(kind="step", device_s=device_s - before_s, tokens=tokens - before_tokens),)
