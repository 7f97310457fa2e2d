"""Mutations: one run's, carried out one after another, each to its end, and durable before that.

A mutation is accepted by the store under ``(run_id, seq)`` before it is queued; a new version is on
disk before its row is committed and committed before anyone can sample it. The next one builds on
the version that this one commits. A gradient commits none, so the optimizer step may be asked for
while it is under way: then nothing of another run comes between them. If the gradient fails, so
does the step.

Arguments are checked by ``client``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from plait.core.custom_losses import Loss
from plait.core.errors import PlaitError, RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import (
    AdamParams,
    Create,
    Datum,
    Done,
    ForwardBackward,
    ForwardResult,
    Load,
    OptimStep,
    Publish,
    Result,
    Save,
    StepResult,
)
from plait.runtime.facts import RunFacts
from plait.runtime.gradients import Gradient, Gradients
from plait.runtime.head import Head
from plait.runtime.ledger import Ledger
from plait.store.files import in_the_way
from plait.store.rows import Json

Progress = Json | Callable[[StepResult], Awaitable[Json]] | None


class Mutations:
    """One run's mutations. Calls may be pipelined: they run in the order made."""

    def __init__(
        self,
        head: Head,
        facts: RunFacts,
        *,
        ledger: Ledger,
        versions_dir: Path,
        op_id: Callable[[], OpId],
        samplable: bool = True,
    ) -> None:
        """``samplable``: a new run's version 0 is published at once."""
        self._head, self._facts, self._op_id = head, facts, op_id
        self._samplable = samplable
        self._ledger, self._versions_dir = ledger, versions_dir
        self._gradients = Gradients()
        self._turn = asyncio.Lock()
        """Held for the whole of a mutation, or until a gradient is queued. First come, first
        served."""

    async def create(self) -> None:
        """Make the adapter (version 0) and make it samplable."""
        spec = self._facts.spec
        async with self._turn:
            op = Create(op_id=self._op_id(), run_id=spec.run_id, seq=self._seq, lora=spec.lora)
            await self._commit(op, 0, progress={"step": 0})
            if self._samplable:
                await self.expose(0)

    async def forward_backward(
        self, data: tuple[Datum, ...], loss: Loss, config: dict[str, float]
    ) -> ForwardResult:
        """Accumulate a gradient."""
        before = self._gradients.before()
        with self._gradients.one() as this:
            async with self._turn:
                op = ForwardBackward(
                    op_id=self._op_id(),
                    run_id=self._run_id,
                    seq=self._seq,
                    data=data,
                    loss=loss,
                    loss_config=config,
                )
                this.queued = await self._queue(op, before)
            result = await self._ended(op, this.queued)
        assert isinstance(result, ForwardResult)
        return result

    async def optim_step(self, adam: AdamParams, progress: Progress) -> StepResult:
        """Apply the accumulated gradient; ``progress`` is committed with the version."""
        before = self._gradients.before()
        async with self._turn:
            op = OptimStep(op_id=self._op_id(), run_id=self._run_id, seq=self._seq, adam=adam)
            return await self._commit(op, self._version + 1, progress=progress, behind=before)

    async def publish(self, version: int | None) -> None:
        """Make the committed version samplable; RequestError if another one is asked for."""
        async with self._turn:
            wanted = self._version if version is None else version
            op = Publish(op_id=self._op_id(), run_id=self._run_id, seq=self._seq, version=wanted)
            await self._ledger.accept(op)
            try:
                if wanted != self._version:
                    raise RequestError(
                        f"version {wanted} is not the committed one ({self._version})"
                    )
                await self.expose(wanted)
            except PlaitError as error:
                await self._ledger.fail(op, error)
                raise
            await self._ledger.finish(op)

    async def save(self, path: str, *, optimizer: bool) -> str:
        """Keep the run's state under ``path``; RequestError, and nothing touched, if it exists."""
        async with self._turn:
            # Here and not in the worker: one that is asked again may replace its own first attempt.
            if (taken := await asyncio.to_thread(in_the_way, Path(path))) is not None:
                raise RequestError(f"{taken} exists already: save elsewhere, or remove it")
            op = Save(
                op_id=self._op_id(),
                run_id=self._run_id,
                seq=self._seq,
                path=path,
                optimizer=optimizer,
            )
            result = await self._ended(op, await self._queue(op))
        assert isinstance(result, Done)
        return result.path

    async def load(self, path: str, *, optimizer: bool, progress: Progress) -> StepResult:
        """Replace the run's state by a saved one; this makes a new version."""
        async with self._turn:
            op = Load(
                op_id=self._op_id(),
                run_id=self._run_id,
                seq=self._seq,
                path=path,
                optimizer=optimizer,
            )
            return await self._commit(op, self._version + 1, progress=progress)

    async def expose(self, version: int) -> None:
        """Make a version on disk samplable; those that are too old for the run no longer are."""
        run_id = self._run_id
        path = self._facts.version_path(version)
        await self._head.samples.load(run_id, version, path, self._op_id())
        self._facts.published.add(version)
        oldest = version - self._facts.spec.max_staleness
        for old in [v for v in self._facts.published if v < oldest]:
            self._facts.published.discard(old)
            self._head.samples.drop_version(run_id, old)

    async def _queue(
        self, op: ForwardBackward | Save, behind: tuple[Gradient, ...] = ()
    ) -> asyncio.Future[Result]:
        await self._ledger.accept(op)
        try:
            return self._head.queue.submit(op, behind=behind)
        except PlaitError as error:
            await self._ledger.fail(op, error)
            raise

    async def _ended(self, op: ForwardBackward | Save, queued: asyncio.Future[Result]) -> Result:
        """The result of an operation that makes no version, once its end is in the store: a
        gradient's comes with the next version."""
        try:
            result = await queued
        except PlaitError as error:
            await self._ledger.fail(op, error)
            raise
        if isinstance(op, ForwardBackward):
            self._ledger.made(op)
        else:
            await self._ledger.finish(op)
        return result

    async def _commit(
        self,
        op: Create | OptimStep | Load,
        version: int,
        *,
        progress: Progress = None,
        behind: tuple[Gradient, ...] = (),
    ) -> StepResult:
        """Carry out an operation that makes a version: on disk, then in the store, then visible."""
        await self._ledger.accept(op, version)
        path = str(self._versions_dir / f"{version:06d}")
        try:
            result = await self._head.queue.submit(op, save_to=path, behind=behind)
            metrics = result.metrics if isinstance(result, StepResult) else {}
            step = StepResult(version=version, metrics=metrics)
            kept = await progress(step) if callable(progress) else progress
            await self._ledger.commit(op, version, path, kept)
        except BaseException as error:
            if self._facts.version != version:  # the worker may have gone ahead of what is kept
                self._head.queue.forget(op.run_id)
                if isinstance(error, Exception):
                    await self._ledger.fail(op, error)
            raise
        await self._ledger.retain()
        return step

    @property
    def _run_id(self) -> RunId:
        return self._facts.spec.run_id

    @property
    def _version(self) -> int:
        """The committed version, -1 before the first."""
        return -1 if self._facts.version is None else self._facts.version

    @property
    def _seq(self) -> int:
        """The number of the next mutation; used up when the store has accepted it."""
        return self._facts.next_seq
