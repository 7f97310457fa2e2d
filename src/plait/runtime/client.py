"""Client: the seven operations of one run, durable before acknowledged.

The one path to the engines: job controllers, the Python API and every other door use it. A
mutation is accepted by the store under ``(run_id, seq)`` before it is queued; a new version is on
disk before its row is committed and committed before anyone can sample it. Mutations of a run are
carried out one after another, each to its end: the next one builds on the version that this one
commits. A gradient commits none, so the optimizer step may be asked for while it is under way: then
nothing of another run comes between them. If the gradient fails, so does the step.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

from plait.core.errors import PlaitError, RequestError
from plait.core.ids import OpId
from plait.core.operations import (
    AdamParams,
    Create,
    Datum,
    Done,
    Forward,
    ForwardBackward,
    ForwardResult,
    Load,
    OptimStep,
    Publish,
    Result,
    Sample,
    SampleResult,
    SamplingParams,
    Save,
    StepResult,
)
from plait.core.runs import Stage
from plait.runtime import arguments
from plait.runtime.facts import RunFacts
from plait.runtime.gradients import Gradient, Gradients
from plait.runtime.head import Head
from plait.runtime.ledger import Ledger
from plait.store.files import in_the_way
from plait.store.rows import Json

Progress = Json | Callable[[StepResult], Awaitable[Json]] | None


class RunClient:
    """One run's operations. Calls may be pipelined: mutations run one by one in the order made."""

    def __init__(
        self,
        head: Head,
        facts: RunFacts,
        *,
        ledger: Ledger,
        versions_dir: Path,
    ) -> None:
        self._head, self.facts = head, facts
        self._ledger, self._versions_dir = ledger, versions_dir
        self._n_ops = 0
        self._gradients = Gradients()
        self._turn = asyncio.Lock()
        """Held for the whole of a mutation, or until a gradient is queued. First come, first
        served."""

    @property
    def version(self) -> int:
        """The committed version."""
        return -1 if self.facts.version is None else self.facts.version

    @property
    def published(self) -> int:
        """The newest version that can be sampled; RequestError if there is none."""
        if not self.facts.published:
            raise RequestError(f"run {self.facts.spec.run_id} has published nothing: publish first")
        return max(self.facts.published)

    async def create(self) -> None:
        """Make the adapter (version 0) and make it samplable."""
        spec = self.facts.spec
        async with self._turn:
            op = Create(op_id=self._op_id(), run_id=spec.run_id, seq=self._seq, lora=spec.lora)
            await self._commit(op, 0, progress={"step": 0})
            await self._expose(0)

    async def attach(
        self, version: int, path: str, next_seq: int, *, before: Sequence[int] = ()
    ) -> None:
        """Take up a run that the store knows: its committed version becomes samplable, and those
        ``before`` it that its staleness allows."""
        self.facts.version, self.facts.path, self.facts.next_seq = version, path, next_seq
        for older in before:
            if older >= version - self.facts.spec.max_staleness:
                await self._expose(older)
        await self._expose(version)

    async def sample(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        n: int = 1,
        first_index: int = 0,
        version: int | None = None,
        base: bool = False,
        prompt_logprobs: bool = False,
        topk_logprobs: int = 0,
    ) -> SampleResult:
        """Draw ``n`` continuations from a published version (default: the newest), or the base
        model. ``prompt_logprobs`` scores the prompt too, ``topk_logprobs`` (at most ``MAX_TOPK``)
        names the likeliest tokens at each position."""
        prompt, params = arguments.token_ids("the prompt", prompt), arguments.sampling(params)
        n, first_index, topk_logprobs = (
            arguments.whole_number("n", n),
            arguments.whole_number("first_index", first_index),
            arguments.whole_number("topk_logprobs", topk_logprobs),
        )
        if base:
            version = None
        elif version is None:
            version = self.published
        elif version not in self.facts.published:
            raise RequestError(
                f"version {version} of run {self.facts.spec.run_id} is not published"
            )
        op = Sample(
            op_id=self._op_id(),
            run_id=self.facts.spec.run_id,
            version=version,
            prompt=prompt,
            n=n,
            params=params,
            first_index=first_index,
            prompt_logprobs=bool(prompt_logprobs),
            topk_logprobs=topk_logprobs,
        )
        return (await self._head.samples.sample((op,)))[0]

    async def forward(self, data: Sequence[Datum], *, adapter: bool = True) -> ForwardResult:
        """Log-probs where masked; ``adapter=False`` is the reference pass."""
        op = Forward(
            op_id=self._op_id(),
            run_id=self.facts.spec.run_id,
            data=arguments.batch(data),
            adapter=adapter,
        )
        result = await self._head.queue.submit(op)
        assert isinstance(result, ForwardResult)
        return result

    async def forward_backward(
        self, data: Sequence[Datum], loss: str, config: dict[str, float] | None = None
    ) -> ForwardResult:
        """Accumulate the gradient of a token-summed loss."""
        batch, before = arguments.batch(data), self._gradients.before()
        with self._gradients.one() as this:
            async with self._turn:
                op = ForwardBackward(
                    op_id=self._op_id(),
                    run_id=self.facts.spec.run_id,
                    seq=self._seq,
                    data=batch,
                    loss=loss,
                    loss_config=dict(config or {}),
                )
                this.queued = await self._queue(op, before)
            result = await self._ended(op, this.queued)
        assert isinstance(result, ForwardResult)
        return result

    async def optim_step(self, adam: AdamParams, *, progress: Progress = None) -> StepResult:
        """Apply the accumulated gradient; the new version is durable when this returns.

        ``progress`` is the controller's own state, committed with the version; a function of what
        the step did, if it needs that.
        """
        adam, before = arguments.adam(adam), self._gradients.before()
        async with self._turn:
            op = OptimStep(
                op_id=self._op_id(), run_id=self.facts.spec.run_id, seq=self._seq, adam=adam
            )
            return await self._commit(op, self.version + 1, progress=progress, behind=before)

    async def publish(self, version: int | None = None) -> None:
        """Make the committed version samplable."""
        async with self._turn:
            wanted = self.version if version is None else version
            op = Publish(
                op_id=self._op_id(), run_id=self.facts.spec.run_id, seq=self._seq, version=wanted
            )
            await self._ledger.accept(op)
            try:
                if wanted != self.version:
                    raise RequestError(
                        f"version {wanted} is not the committed one ({self.version})"
                    )
                await self._expose(wanted)
            except PlaitError as error:
                await self._ledger.fail(op, error)
                raise
            await self._ledger.finish(op)

    async def save(self, path: str | Path, *, optimizer: bool = True) -> str:
        """Keep the run's state under ``path``; RequestError, and nothing touched, if it exists."""
        async with self._turn:
            target = _absolute(path)
            # Here and not in the worker: one that is asked again may replace its own first attempt.
            if (taken := await asyncio.to_thread(in_the_way, Path(target))) is not None:
                raise RequestError(f"{taken} exists already: save elsewhere, or remove it")
            op = Save(
                op_id=self._op_id(),
                run_id=self.facts.spec.run_id,
                seq=self._seq,
                path=target,
                optimizer=optimizer,
            )
            result = await self._ended(op, await self._queue(op))
        assert isinstance(result, Done)
        return result.path

    async def load(self, path: str | Path, *, optimizer: bool = True) -> StepResult:
        """Replace the run's state by a saved one; this makes a new version."""
        async with self._turn:
            op = Load(
                op_id=self._op_id(),
                run_id=self.facts.spec.run_id,
                seq=self._seq,
                path=_absolute(path),
                optimizer=optimizer,
            )
            return await self._commit(op, self.version + 1)

    @asynccontextmanager
    async def rollout(self, worst_blocks: int, *, evaluating: bool = False) -> AsyncIterator[None]:
        """Wait for admission, then hold it for the block: one batch of trajectories.

        Afterwards the run is scoring them until ``scored`` is called; after an error it is not.
        """
        await self._head.gate.enter(self.facts, worst_blocks, evaluating=evaluating)
        try:
            yield
        except BaseException:
            self._head.gate.leave(self.facts)
            raise
        self._head.gate.leave(self.facts, then=None if self.facts.stage.ended else Stage.REWARD)

    def tool_wait(
        self, tokens: tuple[int, ...], version: int | None
    ) -> AbstractContextManager[None]:
        """Around a tool call of a sample that ``version`` has brought to ``tokens``: its cache is
        kept, or makes room, as the policy decides."""
        return self._head.tool_waits.wait(self.facts, tokens, version)

    def scored(self) -> None:
        """The trajectories have their rewards."""
        if self.facts.rollout is Stage.REWARD:
            self._head.gate.leave(self.facts)

    async def progress(self) -> Json:
        """What the run's controller committed with its last step."""
        return await self._ledger.progress()

    async def skip_step(self, progress: Json) -> None:
        """Record a step that made no version (nothing to learn from)."""
        await self._ledger.save_progress(progress)

    def now(self) -> float:
        """Seconds on the clock of this launch's processes."""
        return self._head.now()

    async def _expose(self, version: int) -> None:
        run_id = self.facts.spec.run_id
        path = self.facts.version_path(version)
        await self._head.samples.load(run_id, version, path, self._op_id())
        self.facts.published.add(version)
        oldest = version - self.facts.spec.max_staleness
        for old in [v for v in self.facts.published if v < oldest]:
            self.facts.published.discard(old)
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
        """The result of an operation that makes no version, once its end is in the store."""
        try:
            result = await queued
        except PlaitError as error:
            await self._ledger.fail(op, error)
            raise
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
            if self.facts.version != version:  # the worker may have gone ahead of what is kept
                self._head.queue.forget(op.run_id)
                if isinstance(error, Exception):
                    await self._ledger.fail(op, error)
            raise
        await self._ledger.retain()
        return step

    def _op_id(self) -> OpId:
        self._n_ops += 1
        return OpId(f"{self.facts.spec.run_id}/{self._n_ops}")

    @property
    def _seq(self) -> int:
        """The number of the next mutation; used up when the store has accepted it."""
        return self.facts.next_seq


def _absolute(path: str | Path) -> str:
    """What a worker, which may run elsewhere, must be told."""
    try:
        return str(Path(path).resolve())
    except (TypeError, ValueError) as error:
        raise RequestError(f"path {path!r} is none ({error}): give a directory's path") from error
