"""Client: the seven operations of one run, durable before acknowledged.

The one path to the engines: job controllers, the Python API and every other door use it. Arguments
are checked here; samples and reference passes are asked for here; what changes the run's state is
carried out by ``mutations``.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

from plait.core.custom_losses import Loss
from plait.core.errors import RequestError
from plait.core.ids import OpId
from plait.core.operations import (
    AdamParams,
    Datum,
    Forward,
    ForwardResult,
    Sample,
    SampleResult,
    SamplingParams,
    StepResult,
)
from plait.core.runs import Stage
from plait.runtime import arguments
from plait.runtime.facts import RunFacts
from plait.runtime.head import Head
from plait.runtime.ledger import Ledger
from plait.runtime.mutations import Mutations, Progress
from plait.store.rows import Json


class RunClient:
    """One run's operations. Calls may be pipelined: mutations run one by one in the order made."""

    def __init__(
        self,
        head: Head,
        facts: RunFacts,
        *,
        ledger: Ledger,
        versions_dir: Path,
        samplable: bool = True,
    ) -> None:
        """``samplable``: versions that it begins with are published at once."""
        self._head, self.facts = head, facts
        self._ledger, self._samplable = ledger, samplable
        self._n_ops = 0
        self._mutations = Mutations(
            head,
            facts,
            ledger=ledger,
            versions_dir=versions_dir,
            op_id=self._op_id,
            samplable=samplable,
        )

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
        await self._mutations.create()

    async def attach(
        self, version: int, path: str, next_seq: int, *, before: Sequence[int] = ()
    ) -> None:
        """Take up a run that the store knows: its committed version becomes samplable, and those
        ``before`` it that its staleness allows."""
        self.facts.version, self.facts.path, self.facts.next_seq = version, path, next_seq
        if not self._samplable:
            return
        for older in before:
            if older >= version - self.facts.spec.max_staleness:
                await self._mutations.expose(older)
        await self._mutations.expose(version)

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
        result = (await self._head.samples.sample((op,)))[0]
        self.facts.sampled(len(prompt), sum(len(sample.tokens) for sample in result.samples))
        return result

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
        self, data: Sequence[Datum], loss: Loss, config: dict[str, float] | None = None
    ) -> ForwardResult:
        """Accumulate the gradient of a token-summed loss."""
        return await self._mutations.forward_backward(
            arguments.batch(data), loss, dict(config or {})
        )

    async def optim_step(self, adam: AdamParams, *, progress: Progress = None) -> StepResult:
        """Apply the accumulated gradient; the new version is durable when this returns.

        ``progress`` is the controller's own state, committed with the version; a function of what
        the step did, if it needs that.
        """
        return await self._mutations.optim_step(arguments.adam(adam), progress)

    async def publish(self, version: int | None = None) -> None:
        """Make the committed version samplable."""
        await self._mutations.publish(version)

    async def save(self, path: str | Path, *, optimizer: bool = True) -> str:
        """Keep the run's state under ``path``; RequestError, and nothing touched, if it exists."""
        return await self._mutations.save(_absolute(path), optimizer=optimizer)

    async def load(
        self, path: str | Path, *, optimizer: bool = True, progress: Progress = None
    ) -> StepResult:
        """Replace the run's state by a saved one; this makes a new version. ``progress`` as in
        ``optim_step``."""
        return await self._mutations.load(_absolute(path), optimizer=optimizer, progress=progress)

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

    async def settle(self) -> None:
        """Put into the books what was used since the last version."""
        await self._ledger.settle()

    def now(self) -> float:
        """Seconds on the clock of this launch's processes."""
        return self._head.now()

    def _op_id(self) -> OpId:
        self._n_ops += 1
        return OpId(f"{self.facts.spec.run_id}/{self._n_ops}")


def _absolute(path: str | Path) -> str:
    """What a worker, which may run elsewhere, must be told."""
    try:
        return str(Path(path).resolve())
    except (TypeError, ValueError) as error:
        raise RequestError(f"path {path!r} is none ({error}): give a directory's path") from error
