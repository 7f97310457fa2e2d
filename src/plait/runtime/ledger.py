"""Ledger: one run's mutations in the store, in the order that makes them durable and single.

Accepted before they are queued, ended once; a version's commit ends the mutation that made it and
the gradients that it is made of, keeps the controller's progress and charges the usage in one
transaction. What came behind the last version is written down when it is asked for (``settle``): a
gradient's end before that is worth no wait, for without the version it has to be made again.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.core.errors import StoreError
from plait.core.ids import RunId
from plait.core.operations import ForwardBackward, Mutation
from plait.core.runs import Stage
from plait.runtime.facts import RunFacts
from plait.runtime.head import Head
from plait.runtime.retention import Retention
from plait.runtime.whole import whole
from plait.store.rows import Json
from plait.store.store import Store
from plait.store.usage import Used
from plait.store.writer import GroupWriter

ROLLOUT = "rollout"
"""The kind of spans whose time is the samples'. Their tokens are what was computed: the books count
what a run was given (``PROMPT``) and what it drew (``SAMPLED``)."""
PROMPT, SAMPLED = "prompt", "sample"
"""Kinds whose tokens are what a model read, and wrote; all others are trained."""


class Ledger:
    """The store as one run's client sees it."""

    def __init__(
        self,
        head: Head,
        facts: RunFacts,
        *,
        store: Store,
        writer: GroupWriter,
        retention: Retention,
        launch_dir: Path,
    ) -> None:
        """``launch_dir``: what the store's paths are relative to, so that a launch can be moved."""
        self._head, self._facts, self._launch_dir = head, facts, launch_dir
        self._store, self._writer, self._retention = store, writer, retention
        self._charged: dict[str, tuple[float, int]] = {}
        self._charging = asyncio.Lock()
        """Nothing is charged twice."""
        self._made: dict[int, float] = {}
        """Gradients whose ends are not in the store, by number, and when that was."""

    @property
    def _run_id(self) -> RunId:
        return self._facts.spec.run_id

    async def accept(self, op: Mutation, version: int | None = None) -> None:
        """Make ``op`` durable, which uses up its number; RunEnded if the run takes nothing more.

        ``version``: what it is to make. StoreError if that is committed already, since whoever
        carries it out writes over what lies there.
        """
        self._facts.check_live()
        await whole(self._accept(op, version))

    async def _accept(self, op: Mutation, version: int | None) -> None:
        await self._writer.write(self._accept_now, op, version, self._head.wall())
        self._facts.next_seq = op.seq + 1

    def _accept_now(self, op: Mutation, version: int | None, now: float) -> None:
        if version is not None:
            self._check_free(version)
        self._store.mutations.accept(op.run_id, op.seq, type(op).__name__, now=now)

    def _check_free(self, version: int) -> None:
        last = self._store.mutations.latest_version(self._run_id)
        if last is not None and version <= last.version:
            raise StoreError(
                f"version {last.version} of run {self._run_id} is committed, {version} cannot be "
                "made any more: open the launch anew"
            )

    def made(self, op: ForwardBackward) -> None:
        """A gradient has ended well; it is written down with what comes next."""
        self._made[op.seq] = self._head.wall()

    async def finish(self, op: Mutation) -> None:
        """End ``op`` well."""
        await self._writer.write(
            self._store.mutations.finish, op.run_id, op.seq, now=self._head.wall()
        )

    async def fail(self, op: Mutation, error: Exception) -> None:
        """End ``op`` with its error, unless the disk refuses that too: the error is what counts.

        What was under way when its run was cancelled is left as it is.
        """
        if self._facts.stage is Stage.CANCELLED:
            return
        with contextlib.suppress(StoreError):
            await self._writer.write(
                self._store.mutations.finish,
                op.run_id,
                op.seq,
                error=f"{getattr(error, 'code', type(error).__name__)}: {error}",
                now=self._head.wall(),
            )

    async def commit(self, op: Mutation, version: int, path: str, progress: Json | None) -> None:
        """Commit the version that ``op`` made; it lies under ``path`` already.

        What the store has committed, the facts say too, even if the caller is cancelled.
        """
        await whole(self._commit(op, version, path, progress))

    async def _commit(self, op: Mutation, version: int, path: str, progress: Json | None) -> None:
        facts = self._facts
        async with self._charging:
            used, made = self._used(), dict(self._made)
            await self._writer.write(
                self._store.mutations.commit_version,
                self._run_id,
                version,
                op.seq,
                str(Path(path).relative_to(self._launch_dir)),
                result={"version": version},
                progress=progress,
                used=tuple(self._uncharged(used)),
                made=made,
                now=self._head.wall(),
            )
            self._written(used, made)
        facts.version, facts.path = version, path
        facts.uncommitted = [later for later in facts.uncommitted if later.seq > op.seq]
        step = int((progress or {}).get("step", facts.step))
        if step > facts.step:
            facts.pace.stepped(self._head.now())
        facts.step = step

    async def settle(self) -> None:
        """Charge what was used since the last version, or since this was last asked for, and end
        the gradients that were made."""
        await whole(self._settle())

    async def _settle(self) -> None:
        async with self._charging:
            used, made = self._used(), dict(self._made)
            entries = [(self._run_id, one) for one in self._uncharged(used)]
            if entries or made:
                await self._writer.write(self._settle_now, entries, made, self._head.wall())
                self._written(used, made)

    def _settle_now(
        self, entries: list[tuple[RunId, Used]], made: Mapping[int, float], now: float
    ) -> None:
        self._store.mutations.finish_many(self._run_id, made)
        self._store.usage.charge(self._facts.spec.tenant_id, entries, now=now)

    def _written(self, used: dict[str, tuple[float, int]], made: Mapping[int, float]) -> None:
        self._charged = used
        for seq in made:
            self._made.pop(seq, None)

    def _used(self) -> dict[str, tuple[float, int]]:
        """Device-seconds and tokens in all, by the books' kinds."""
        facts = self._facts
        used = {kind: one for kind, one in facts.by_kind.items() if kind != ROLLOUT}
        device_s, _ = facts.by_kind.get(ROLLOUT, (0.0, 0))
        return {
            **used,
            PROMPT: (0.0, facts.prompt_tokens),
            SAMPLED: (device_s, facts.sampled_tokens),
        }

    def _uncharged(self, used: Mapping[str, tuple[float, int]]) -> Iterator[Used]:
        """What was not charged with an earlier version."""
        for kind, (device_s, tokens) in used.items():
            before_s, before = self._charged.get(kind, (0.0, 0))
            if device_s > before_s or tokens > before:
                yield Used(kind=kind, device_s=device_s - before_s, tokens=tokens - before)

    async def retain(self) -> None:
        """Drop versions that need not be kept. What is committed stays so whatever becomes of
        this: a failure is written down, and the next commit tries again."""
        await whole(self._retain())

    async def _retain(self) -> None:
        version = self._facts.version
        if version is None:
            return
        retention, now = self._retention, self._head.wall()
        try:
            there = await asyncio.to_thread(retention.note, version)
            if old := await self._writer.write(retention.record, version, there, now=now):
                await asyncio.to_thread(retention.remove, old)
        except (StoreError, OSError) as error:
            self._head.journal.event(self._run_id, "retention_failed", reason=str(error))

    async def progress(self) -> Json:
        """What the run's controller committed last."""
        row = await self._writer.write(self._store.runs.get, self._run_id)
        return row.progress

    async def save_progress(self, progress: Json) -> None:
        """Keep the controller's progress where there is no version to commit it with."""
        await self._writer.write(
            self._store.runs.save_progress, self._run_id, progress, now=self._head.wall()
        )
        self._facts.step = int(progress.get("step", self._facts.step))
